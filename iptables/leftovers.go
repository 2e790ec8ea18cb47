package iptables

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kubeProxyTable is the table of kube-proxy's nftables mode, one per family.
const kubeProxyTable = "kube-proxy"

// warnOfKubeProxy tells of what kube-proxy's nftables mode has in the kernel. Its iptables mode is heard after us, as our
// jumps come first. But nftables base chains of one priority are heard in the order of their registration, the newest
// first (nf_hook_entries_grow), and the first translation stands: whatever a kube-proxy that is gone knew last may be in
// force for ever. It is not ours to delete, and beside a kube-proxy that runs it is as it should be.
func (r *Rules) warnOfKubeProxy() {
	for _, v6 := range []bool{false, true} {
		if nftTable(v6, kubeProxyTable) {
			family := map[bool]string{false: "ip", true: "ip6"}[v6]
			r.cfg.Log.WithField("table", family+" "+kubeProxyTable).Warn("there are rules of kube-proxy's nftables mode, which may be heard " +
				"before those written here: if kube-proxy does not run any more, remove them by kube-proxy --cleanup or nft delete table " +
				family + " " + kubeProxyTable)
		}
	}
}

// nftTable reports whether this network namespace has a table of that name in nf_tables. A kernel without has none.
func nftTable(v6 bool, name string) bool {
	const getTable, newTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	family := uint8(unix.NFPROTO_IPV4)
	if v6 {
		family = unix.NFPROTO_IPV6
	}
	request := nl.NewNetlinkRequest(getTable, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	request.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(name)))
	replies, err := request.Execute(unix.NETLINK_NETFILTER, newTable)
	return err == nil && len(replies) > 0
}
