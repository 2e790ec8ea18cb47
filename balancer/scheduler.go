package balancer

import (
	"fmt"
	"strings"
)

// Scheduler names a way to choose among the backends of a set. The names are those of ipvsadm(8) where IPVS has the
// like; random and p2c it does not have. The zero value is rr.
type Scheduler string

const (
	RoundRobin         Scheduler = "rr"
	WeightedRoundRobin Scheduler = "wrr"
	LeastConnection    Scheduler = "lc"
	WeightedLeast      Scheduler = "wlc"
	ShortestDelay      Scheduler = "sed"
	NeverQueue         Scheduler = "nq"
	Random             Scheduler = "random"
	PowerOfTwo         Scheduler = "p2c"
	SourceHash         Scheduler = "sh"
	DestinationHash    Scheduler = "dh"
	Maglev             Scheduler = "mh"
)

// schedulers is every scheduler, in the order in which errors list them.
var schedulers = []struct {
	name  Scheduler
	build func(backends []*backend, first func(int) int) scheduler
}{
	{RoundRobin, newRoundRobin},
	{WeightedRoundRobin, newWeightedRoundRobin},
	{LeastConnection, newLeastConnection},
	{WeightedLeast, newWeightedLeast},
	{ShortestDelay, newShortestDelay},
	{NeverQueue, newNeverQueue},
	{Random, newRandom},
	{PowerOfTwo, newPowerOfTwo},
	{SourceHash, newSourceHash},
	{DestinationHash, newDestinationHash},
	{Maglev, newMaglev},
}

// ParseScheduler returns the scheduler of that name; the empty name is rr. The error lists the names there are.
func ParseScheduler(name string) (Scheduler, error) {
	if name == "" {
		return RoundRobin, nil
	}
	var names []string
	for _, s := range schedulers {
		if string(s.name) == name {
			return s.name, nil
		}
		names = append(names, string(s.name))
	}
	return "", fmt.Errorf("unknown scheduler %q: choose one of %s", name, strings.Join(names, ", "))
}

// scheduler is the order in which the backends of a view are used.
type scheduler interface {
	// next claims a backend that r takes, or returns nil if there is none. Any number of goroutines call it at once; it
	// must neither block nor allocate.
	next(r request) *backend
	// follow returns the scheduler for the set that replaces this one's, carrying over what the order depends on. The
	// backends are sorted by address; those that stay are the same pointers. Picks may still be going on here.
	follow(backends []*backend) scheduler
}

// newScheduler makes the scheduler of that name, rr for one that there is not.
func newScheduler(name Scheduler, backends []*backend, first func(int) int) scheduler {
	for _, s := range schedulers {
		if s.name == name {
			return s.build(backends, first)
		}
	}
	return newRoundRobin(backends, first)
}
