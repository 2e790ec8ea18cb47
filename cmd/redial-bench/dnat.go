package main

import (
	"fmt"
	"strings"
)

// dnat is what kube-proxy would write: a list of the Services, and a chain for each with a rule for each backend.
func dnat(n *network, name, protocol string, addresses, backends []string) (*system, error) {
	s := newSystem(name, withPort(addresses, servicePort))
	if out, err := n.node.Output("iptables", "--version"); err == nil {
		s.version = strings.TrimSpace(out)
	}
	var chains, rules strings.Builder
	list := "BENCH-" + strings.ReplaceAll(addresses[0], ".", "-")
	fmt.Fprintf(&chains, "*nat\n:%s - [0:0]\n", list)
	for i, address := range addresses {
		chain := fmt.Sprintf("%s-%d", list, i)
		fmt.Fprintf(&chains, ":%s - [0:0]\n", chain)
		fmt.Fprintf(&rules, "-A %s -d %s -p %s --dport %d -j %s\n", list, address, protocol, servicePort, chain)
		for j, backend := range backends {
			which := ""
			if left := len(backends) - j; left > 1 {
				which = fmt.Sprintf("-m statistic --mode random --probability %.8f ", 1/float64(left))
			}
			fmt.Fprintf(&rules, "-A %s -p %s %s-j DNAT --to-destination %s:%d\n", chain, protocol, which, backend, backendPort)
		}
	}
	// Whatever comes to another system does not pass by the list.
	first, last := addresses[0], addresses[len(addresses)-1]
	fmt.Fprintf(&rules, "-A PREROUTING -m iprange --dst-range %s-%s -j %s\nCOMMIT\n", first, last, list)
	path, err := writeConfig(n, list, chains.String()+rules.String())
	if err == nil {
		_, err = n.node.Output("iptables-restore", "--noflush", path)
	}
	return s, err
}
