package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	tcpToPod    = []string{"-p", "tcp", "--dport", "8080"}
	synsRefused = []string{"-p", "tcp", "--dport", "8080", "--syn", "-j", "REJECT", "--reject-with", "tcp-reset"}
)

// breakIt begins a fault of the backend; pace is how it waits between the parts of one.
//
// A port is closed by a rule that answers each SYN as a closed port does. Closing the listener would reset what is in its
// queue as well, and such a connection was established: [faultReset] is about those.
func (b *faultyBackend) breakIt(e event, pace func(int)) {
	b.t.Helper()
	switch e.kind {
	case faultRefuse:
		b.close()
	case faultFlap:
		for range 3 {
			b.close()
			pace(5)
			b.feelRules(e.kind)
			b.reopen()
			pace(2)
		}
		b.close()
	case faultCrash:
		end := b.cut(e)
		b.close()
		b.abort()
		end()
	case faultSilent:
		b.excuseUDP(e)
		for _, rule := range [][]string{tcpToPod, {"-p", "udp", "--dport", "8053"}} {
			b.rules(e.families, "-I", "INPUT", append(rule[:len(rule):len(rule)], "-j", "DROP")...)
		}
	case faultVanish:
		end := b.cut(e)
		b.excuseUDP(e)
		b.rules(bothFamilies, "-I", "INPUT", "-j", "DROP")
		b.rules(bothFamilies, "-I", "OUTPUT", "-j", "DROP")
		b.abort()
		end()
	case faultReset, faultHangUp:
		b.endings = append(b.endings, b.ledger.suffer(outage{what: e.kind, tcp: true, spokenOnly: true}))
		b.mode.refusal.Store(&e.kind)
	case faultSlow:
		b.mode.slow.Store(true)
	}
}

// mend ends the fault.
func (b *faultyBackend) mend(e event) {
	b.t.Helper()
	b.feelRules(e.kind)
	switch e.kind {
	case faultRefuse, faultFlap, faultCrash:
		b.reopen()
	case faultSilent:
		for _, rule := range [][]string{tcpToPod, {"-p", "udp", "--dport", "8053"}} {
			b.rules(e.families, "-D", "INPUT", append(rule[:len(rule):len(rule)], "-j", "DROP")...)
		}
	case faultVanish:
		b.rules(bothFamilies, "-D", "INPUT", "-j", "DROP")
		b.rules(bothFamilies, "-D", "OUTPUT", "-j", "DROP")
	case faultReset, faultHangUp:
		b.mode.refusal.Store(nil)
	case faultSlow:
		b.mode.slow.Store(false)
	}
	for _, end := range b.endings {
		end()
	}
	b.endings = nil
}

func (b *faultyBackend) close() {
	b.t.Helper()
	b.rules(bothFamilies, "-I", "INPUT", synsRefused...)
	b.closeUDP()
}

func (b *faultyBackend) reopen() {
	b.t.Helper()
	b.rules(bothFamilies, "-D", "INPUT", synsRefused...)
	b.openUDP()
}

// cut excuses the connections to this backend that have begun before the returned function is called. One that was
// established and not greeted yet is among them.
func (b *faultyBackend) cut(e event) (end func()) {
	return b.ledger.cutOff(cut{what: e.kind, from: time.Now(), backend: b.name})
}

// feelRules counts the packets that the pod's rules have met since they were made.
func (b *faultyBackend) feelRules(fault string) {
	b.t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		out, err := b.host.Output(program, "-w", "-L", "-v", "-x", "-n")
		require.NoError(b.t, err)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 && (f[2] == "DROP" || f[2] == "REJECT") {
				n, _ := strconv.Atoi(f[0])
				b.ledger.feel(fault, n)
			}
		}
	}
}

// excuseUDP excuses requests: a silent backend cannot be told from a protocol without answers.
func (b *faultyBackend) excuseUDP(e event) {
	b.endings = append(b.endings, b.ledger.suffer(outage{what: e.kind, udp: true}))
}
