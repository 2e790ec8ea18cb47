package config

import "fmt"

// The reasons a [Problem] can have. They are part of the interface: events and metrics carry them, and alerts match them.
const (
	ReasonInvalidAddress     = "InvalidAddress"
	ReasonWrongFamily        = "WrongFamily"
	ReasonDuplicateAddress   = "DuplicateAddress"
	ReasonInvalidPort        = "InvalidPort"
	ReasonDuplicatePort      = "DuplicatePort"
	ReasonInvalidNodePort    = "InvalidNodePort"
	ReasonInvalidField       = "InvalidField"
	ReasonInvalidAffinity    = "InvalidAffinity"
	ReasonUnsupportedPolicy  = "UnsupportedPolicy"
	ReasonSourceRanges       = "SourceRangesNotEnforced"
	ReasonInvalidEndpoint    = "InvalidEndpoint"
	ReasonInvalidEndpointSet = "InvalidEndpointSlice"
	ReasonPortNameMismatch   = "EndpointPortMismatch"
)

// problems collects what is wrong with one object while it is translated.
type problems []Problem

func (p *problems) add(reason, format string, args ...any) { p.addPort("", reason, format, args...) }

func (p *problems) addPort(port, reason, format string, args ...any) {
	*p = append(*p, Problem{Port: port, Reason: reason, Message: fmt.Sprintf(format, args...)})
}
