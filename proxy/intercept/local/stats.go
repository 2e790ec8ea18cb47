package local

import "net/netip"

// Stats tell what has been done. Counts are since the start.
type Stats struct {
	IPv4, IPv6 FamilyStats
}

// Of returns the part about one family.
func (s Stats) Of(v6 bool) FamilyStats {
	if v6 {
		return s.IPv6
	}
	return s.IPv4
}

// FamilyStats are about one family.
type FamilyStats struct {
	Routes         int        // in force
	Added, Removed int        // routes written, and removed
	Refused        int        // addresses that must not or cannot be made local
	Shared         int        // VIPs that share listeners
	Assigned       int        // times that one was written, or removed
	Source         netip.Addr // what the node's own clients connect from
	Err            error      // why nothing of the family can be made local; nil: it can
}

// Stats returns the present ones. It may be called at any time, from any goroutine.
func (r *Routes) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

func (r *Routes) publish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.families {
		s := FamilyStats{
			Routes: len(f.table.ours), Added: f.added, Removed: f.removed, Refused: f.refused, Source: f.source, Err: f.broken,
			Shared: len(f.shared), Assigned: f.assigned,
		}
		if f.v6 {
			r.stats.IPv6 = s
		} else {
			r.stats.IPv4 = s
		}
	}
}
