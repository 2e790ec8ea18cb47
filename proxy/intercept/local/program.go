package local

import (
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// dialled is the map's key: what a client has dialled, as the program writes it.
type dialled struct {
	addr [16]byte // of IPv4: mapped
	port uint32
}

func keyOf(to netip.AddrPort) dialled {
	return dialled{addr: to.Addr().As16(), port: uint32(to.Port())}
}

// Where struct bpf_sk_lookup (linux/bpf.h) has its fields. All are in network byte order, but for the local port.
const (
	ctxFamily    = 8
	ctxProtocol  = 12
	ctxLocalIP4  = 40
	ctxLocalIP6  = 44
	ctxLocalPort = 60
)

// The verdicts. skDrop has the kernel find no socket at all and answer with a reset (inet_lookup_run_sk_lookup).
const skDrop, skPass = 0, 1

// program is what the kernel runs for the first packet of each connection to this network namespace, before it looks for a
// listening socket by itself. What is not in the map is left to the kernel. What is in it goes to the socket of its slot or,
// if there is none, is refused.
func program(vips, sockets *ebpf.Map) *ebpf.ProgramSpec {
	const afInet, tcp = 2, 6
	const mapped = 0xffff // the third word of an IPv4-mapped address, byte by byte 00 00 ff ff
	const addr, port, slot = -24, -8, -4
	word := func(i int16) int16 { return addr + 4*i }
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, ctxProtocol, asm.Word),
		asm.JNE.Imm(asm.R2, tcp, "pass"),
		asm.LoadMem(asm.R2, asm.R6, ctxLocalPort, asm.Word),
		asm.StoreMem(asm.RFP, port, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, ctxFamily, asm.Word),
		asm.JNE.Imm(asm.R2, afInet, "ipv6"),

		asm.StoreImm(asm.RFP, word(0), 0, asm.Word),
		asm.StoreImm(asm.RFP, word(1), 0, asm.Word),
		asm.Mov.Imm(asm.R2, mapped),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.StoreMem(asm.RFP, word(2), asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, ctxLocalIP4, asm.Word),
		asm.StoreMem(asm.RFP, word(3), asm.R2, asm.Word),
		asm.Ja.Label("look"),
	}
	for i := range int16(4) {
		load := asm.LoadMem(asm.R2, asm.R6, ctxLocalIP6+4*i, asm.Word)
		if i == 0 {
			load = load.WithSymbol("ipv6")
		}
		insns = append(insns, load, asm.StoreMem(asm.RFP, word(i), asm.R2, asm.Word))
	}
	insns = append(insns,
		asm.LoadMapPtr(asm.R1, vips.FD()).WithSymbol("look"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, addr),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),

		asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
		asm.StoreMem(asm.RFP, slot, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slot),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),

		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnSkAssign.Call(), // EEXIST: an earlier program has chosen another one, which then has it
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),

		asm.Mov.Imm(asm.R0, skPass).WithSymbol("pass"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, skDrop).WithSymbol("drop"),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{
		Name: "redial_lookup", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "Apache-2.0", Instructions: insns,
	}
}
