package intercept

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a range of ports, both ends included. The zero value is empty.
type PortRange struct {
	First, Last uint16
}

// ParsePortRange reads kube-proxy's notation: "61000-65535", "61000+99" (61000 to 61099) or "61000".
func ParsePortRange(s string) (PortRange, error) {
	s = strings.TrimSpace(s)
	first, last, offset := s, s, false
	if before, after, found := strings.Cut(s, "-"); found {
		first, last = before, after
	} else if before, after, found := strings.Cut(s, "+"); found {
		first, last, offset = before, after, true
	}
	lo, err := parsePort(first)
	if err != nil {
		return PortRange{}, fmt.Errorf("port range %q: %w", s, err)
	}
	hi, err := parsePort(last)
	if err != nil {
		return PortRange{}, fmt.Errorf("port range %q: %w", s, err)
	}
	if offset {
		hi += lo
	}
	r := PortRange{First: uint16(lo), Last: uint16(hi)}
	if lo < 1 || hi > 65535 || hi < lo {
		return PortRange{}, fmt.Errorf("port range %q: want FIRST-LAST, FIRST+COUNT or PORT within 1-65535", s)
	}
	return r, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port", s)
	}
	return int(n), nil
}

// Size returns the number of ports.
func (r PortRange) Size() int {
	if r == (PortRange{}) {
		return 0
	}
	return int(r.Last) - int(r.First) + 1
}

// Contains reports whether p lies in r.
func (r PortRange) Contains(p uint16) bool { return r.Size() > 0 && r.First <= p && p <= r.Last }

// Overlaps reports whether r and o share a port.
func (r PortRange) Overlaps(o PortRange) bool {
	return r.Size() > 0 && o.Size() > 0 && r.First <= o.Last && o.First <= r.Last
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }
