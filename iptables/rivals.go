package iptables

import (
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rivalTable is the table of kube-proxy in its mode nftables, one each in the families ip and ip6:
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/proxy/nftables/README.md.
const rivalTable = "kube-proxy"

// Rivals returns the families ("ip", "ip6") in which kube-proxy's mode nftables has its table in this network namespace. It
// stays when kube-proxy stops. Its chains have the priority of the nat table's, and of two the kernel asks the one first that
// was registered last: where the nat table is the older, as it is wherever a CNI or the kubelet uses it, kube-proxy sends
// connections to Services where it last knew endpoints, and redial does not get to see them. Its chains for source ranges
// come before all nat in any case. Nil means that there is no such table, or that the kernel does not say.
func Rivals() []string {
	const (
		getTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE
		newTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	)
	request := nl.NewNetlinkRequest(getTable, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	replies, err := request.Execute(unix.NETLINK_NETFILTER, newTable)
	if err != nil {
		return nil
	}
	var found []string
	for _, reply := range replies {
		if len(reply) < nl.SizeofNfgenmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(reply[nl.SizeofNfgenmsg:])
		if err != nil {
			continue
		}
		family := map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[reply[0]]
		for _, a := range attributes {
			if a.Attr.Type == unix.NFTA_TABLE_NAME && nl.BytesToString(a.Value) == rivalTable && family != "" {
				found = append(found, family)
			}
		}
	}
	slices.Sort(found)
	return found
}
