package iptables

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// moment is a generation of the kernel's ruleset, if it is known. Two that are the same have the same rules.
type moment struct {
	generation uint32
	known      bool
}

// nftGeneration returns the generation of nf_tables rules in this network namespace. The kernel counts it up with every
// transaction, ours or anybody's, so an unchanged one proves that nothing was touched. It takes one system call each
// way, where reading 30,000 rules takes a third of a second.
func nftGeneration() (uint32, bool) {
	const (
		getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN
		newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	)
	request := nl.NewNetlinkRequest(getGeneration, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	replies, err := request.Execute(unix.NETLINK_NETFILTER, newGeneration)
	if err != nil || len(replies) != 1 || len(replies[0]) < nl.SizeofNfgenmsg {
		return 0, false
	}
	attributes, err := nl.ParseRouteAttr(replies[0][nl.SizeofNfgenmsg:])
	if err != nil {
		return 0, false
	}
	for _, a := range attributes {
		if a.Attr.Type&^unix.NLA_F_NESTED == unix.NFTA_GEN_ID && len(a.Value) >= 4 {
			return binary.BigEndian.Uint32(a.Value), true
		}
	}
	return 0, false
}
