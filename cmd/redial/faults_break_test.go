package main

import "time"

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
			b.reopen()
			pace(2)
		}
		b.close()
	case faultCrash:
		b.cut(e)
		b.close()
		b.abort()
	case faultSilent:
		b.excuseUDP(e)
		for _, rule := range [][]string{tcpToPod, {"-p", "udp", "--dport", "8053"}} {
			b.rules(e.families, "-I", "INPUT", append(rule[:len(rule):len(rule)], "-j", "DROP")...)
		}
	case faultVanish:
		b.cut(e)
		b.excuseUDP(e)
		b.rules(bothFamilies, "-I", "INPUT", "-j", "DROP")
		b.rules(bothFamilies, "-I", "OUTPUT", "-j", "DROP")
		b.abort()
	case faultReset:
		b.endings = append(b.endings, b.ledger.suffer(outage{what: faultReset, tcp: true, spokenOnly: true}))
		b.mode.resetting.Store(true)
	case faultSlow:
		b.mode.slow.Store(true)
	}
}

// mend ends the fault.
func (b *faultyBackend) mend(e event) {
	b.t.Helper()
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
	case faultReset:
		b.mode.resetting.Store(false)
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

// cut excuses the connections to this backend. One that was established and not greeted yet is among them.
func (b *faultyBackend) cut(e event) {
	b.endings = append(b.endings, b.ledger.cutOff(cut{what: e.kind, from: time.Now(), backend: b.name}))
}

// excuseUDP excuses requests: a silent backend cannot be told from a protocol without answers.
func (b *faultyBackend) excuseUDP(e event) {
	b.endings = append(b.endings, b.ledger.suffer(outage{what: e.kind, udp: true}))
}
