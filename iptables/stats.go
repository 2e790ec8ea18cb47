package iptables

import "time"

// Stats says what the rules are like and what it took to keep them so. Counts are since New.
type Stats struct {
	Mode    Mode   // never ModeAuto
	Version string // of the iptables programs
	IPv4    FamilyStats
	IPv6    FamilyStats
}

// FamilyStats is the part of Stats about one family.
type FamilyStats struct {
	// Target is what rules do: "REDIRECT", or "DNAT to" an address. Empty until the first Commit.
	Target string
	// Restores counts executions of iptables-restore, FailedRestores those that failed.
	Restores, FailedRestores int
	// Restoring and Reading are how long iptables-restore and iptables-save have run, all executions together.
	Restoring, Reading time.Duration
	// FailedPartials counts those of them that were to write only what had changed. Everything is written then.
	FailedPartials int
	// Repairs counts the times that rules were found changed or missing and were written again.
	Repairs int
	// Quarantined is the number of bindings left out now, because the kernel refuses their rules.
	Quarantined int
	// Dropping is the number of bindings whose clients from elsewhere are dropped without an answer, whatever their address.
	Dropping int
	// Chains and Rules are what is in force now, jumps from built-in chains not counted.
	Chains, Rules int
	// Tables are those that hold rules of ours.
	Tables []TableStats
	// FlowsRemoved counts connection tracking entries of UDP that contradicted the rules and were deleted.
	FlowsRemoved uint
	// FlowsErr says why such entries could not be deleted; nil if they could.
	FlowsErr error
	// Err says why the family is not steered at all; nil if it is.
	Err error
	// FilterErr says why the proxy ports are not guarded against direct access, and clients refused that should be dropped;
	// nil if all is well or nothing of the kind is asked for.
	FilterErr error
}

// TableStats is one table of a family.
type TableStats struct {
	Name string
	// Rules is the number of rules in force, jumps from built-in chains not counted, Written how many of them the last write
	// wrote.
	Rules, Written int
}

// Stats may be called at any time. It shows the state after the last Commit or Cleanup.
func (r *Rules) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// publish makes the state of the families visible to Stats.
func (r *Rules) publish() {
	s := Stats{Mode: r.mode, Version: r.families[0].tools.version}
	s.IPv4.Err, s.IPv6.Err = r.absent[false], r.absent[true]
	for _, f := range r.families {
		now := f.stats
		now.Quarantined, now.Err, now.FilterErr = len(f.quarantined), f.broken, f.filterErr
		now.FlowsRemoved, now.FlowsErr = r.flowsRemoved[f.v6], r.flowsErr[f.v6]
		if f.applied != nil {
			now.Target, now.Dropping = describe(f.target), f.dropping
			for _, t := range f.applied.tables() {
				if len(t.chains) == 0 {
					continue
				}
				table := TableStats{Name: t.name, Written: f.written[t.name]}
				for _, c := range t.chains {
					table.Rules += len(c.rules)
				}
				now.Chains += len(t.chains)
				now.Rules += table.Rules
				now.Tables = append(now.Tables, table)
			}
		}
		if f.v6 {
			s.IPv6 = now
		} else {
			s.IPv4 = now
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats = s
}
