package proxy

import (
	"cmp"
	"slices"

	"redial/config"
)

// SharedStatus is a proxy port that several frontends share, as there are more of them than ports or file descriptors.
type SharedStatus struct {
	Family    config.Family `json:"family"`
	Pool      config.Pool   `json:"pool"`
	ProxyPort uint16        `json:"proxyPort"`
	Frontends int           `json:"frontends"`
	// Strays counts connections that were reset, since no frontend was for the address they had been made to.
	Strays       uint64 `json:"strays"`
	AcceptErrors uint64 `json:"acceptErrors"` // accept(2) failures: out of descriptors or memory
}

func (p *Proxier) sharedStatus() []SharedStatus {
	var list []SharedStatus
	for key, listeners := range p.sharing.open {
		for _, l := range listeners {
			if key.pool == "" {
				continue
			}
			s := SharedStatus{Family: key.family, Pool: key.pool, ProxyPort: l.Addr().Port()}
			for _, f := range p.frontends {
				if f.shared == l {
					s.Frontends++
				}
			}
			stats := l.Stats()
			s.Strays, s.AcceptErrors = stats.Strays, stats.AcceptErrors
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b SharedStatus) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Pool, b.Pool), cmp.Compare(b.ProxyPort, a.ProxyPort))
	})
	return list
}
