package proxy

import (
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	"redial/config"
)

// problems of Services, in the order in which they were found.
type problems map[config.ServiceName][]config.Problem

func (p problems) add(name config.ServicePortName, reason, format string, args ...any) {
	p[name.Service] = append(p[name.Service], config.Problem{
		Port: name.Port, Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// The reasons that planning and syncing add to those of package config.
const (
	ReasonUnsupportedProtocol = "UnsupportedProtocol"
	ReasonAddressConflict     = "AddressConflict"
	ReasonListenFailed        = "ListenFailed"
	ReasonSteeringFailed      = "SteeringFailed"
	// ReasonUnrestricted: clients would have to be told apart, which the way of interception cannot.
	ReasonUnrestricted = "CannotRestrict"
)

// shared reports whether there is one that may be solved by what happens to another Service.
func (p problems) shared() bool {
	for _, list := range p {
		for _, problem := range list {
			if problem.Reason != ReasonUnsupportedProtocol && problem.Reason != ReasonUnrestricted {
				return true
			}
		}
	}
	return false
}

// retryable reports whether a problem may go away without a change of the Service.
func (p *Proxier) retryable() bool {
	for _, list := range p.problems {
		for _, problem := range list {
			if problem.Reason == ReasonListenFailed || problem.Reason == ReasonSteeringFailed {
				return true
			}
		}
	}
	return false
}

// logProblems logs and reports what is new among a Service's problems, and logs what is gone. It runs with mu held.
func (p *Proxier) logProblems(name config.ServiceName) {
	now := p.allProblems(name)
	before := p.logged[name]
	log := p.log.WithField("service", name)
	for _, problem := range now {
		if !slices.Contains(before, problem) {
			log.WithFields(logrus.Fields{"port": problem.Port, "reason": problem.Reason, "problem": problem.Message}).Warn("Service has a problem")
			if p.cfg.Report != nil {
				p.cfg.Report(name, problem)
			}
		}
	}
	for _, problem := range before {
		if !slices.Contains(now, problem) {
			log.WithFields(logrus.Fields{"port": problem.Port, "reason": problem.Reason}).Info("problem resolved")
		}
	}
	if len(now) == 0 {
		delete(p.logged, name)
	} else {
		p.logged[name] = now
	}
}

func (p *Proxier) allProblems(name config.ServiceName) []config.Problem {
	var all []config.Problem
	if s := p.wanted[name]; s != nil {
		all = append(all, s.Problems...)
	}
	return slices.Concat(all, p.problems[name], p.checkProblems[name])
}

func union(a, b problems) map[config.ServiceName]struct{} {
	u := make(map[config.ServiceName]struct{}, len(a))
	for name := range a {
		u[name] = struct{}{}
	}
	for name := range b {
		u[name] = struct{}{}
	}
	return u
}
