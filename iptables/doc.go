// Package iptables steers traffic for virtual addresses to the proxy's listeners with rules of the nat table. It is the
// default [intercept.Interceptor].
//
// # Hooks and chains
//
// Every chain of ours begins with REDIAL-; no rule of anybody else is touched, except that our jumps are inserted at the
// head of the built-in chains. One set of rules per family:
//
//	nat     PREROUTING ──► REDIAL-PREROUTING ──┐ 127/8 from outside: RETURN
//	        OUTPUT ──────► REDIAL-OUTPUT ──────┤ the proxy's own dials (mark): RETURN
//	                                           ▼
//	                                   REDIAL-SERVICES ─ one rule per VIP, or a tree of chains
//	                                           │ last: addrtype LOCAL
//	                                           ▼
//	                                   REDIAL-NODEPORTS ─ one rule per NodePort, or a tree
//
//	filter  INPUT ───────► REDIAL-INPUT ─ proxy ports: through a rule ACCEPT, directly REJECT
//
// The rule of a VIP ends in REDIRECT, which is valid in both hooks, so both share the chains. Where REDIRECT would drop
// packets, because the interface they come in by has no address, every rule ends in DNAT to an address of the node
// instead; see [Target].
//
// # The tree
//
// A first packet costs one comparison per rule it passes, so a chain with more than 16 VIPs is split by the next four
// bits of the address that tell its VIPs apart. The child is named after its prefix: REDIAL-10.96.32.0_20. VIPs that
// share an address, and NodePorts, are split by protocol and then by four bits of the port: REDIAL-NODEPORTS_t7. Names
// that would exceed the kernel's 28 characters are hashed.
//
// # Writing
//
// A Commit writes the chains that changed, with one exec of iptables-restore --noflush per family: one exec per rule
// takes about 20 ms each. It then reads our lines back. The fingerprint of what it sees is what Verify compares with
// later, so the spelling of any version of iptables-save will do. In nft mode the kernel's ruleset generation is
// compared first: while nothing changed in the network namespace since they last looked, neither Verify nor an unchanged
// Commit starts a process. In legacy mode they read the tables each time.
//
// When the kernel refuses a write, the rules are tried in a scratch chain, by halves, until the culprits are known.
// Those come back as [intercept.BindingError] and are left out, unchanged, for some minutes; the others are written.
//
// # What it does not do
//
// It never changes a sysctl; 127.0.0.1 stays out of reach of other hosts, yet NodePorts on 127.0.0.1 and ::1 work from
// the node itself. It does not keep its jumps in first place: whoever inserts before us is heard first, as other agents
// insist on that place too and nobody would win. It cannot overrule a drop in a table of another program, such as
// firewalld's own nftables table. Of connection tracking it deletes only
// entries of UDP that contradict its rules. Rules stay when the process ends.
//
// # Usage
//
//	rules, err := iptables.New(iptables.Config{Mark: 0x4000, ProxyPorts: ports, Log: log})
//	...
//	err = rules.Commit(ctx, intercept.State{Bindings: bindings})       // after every change of Services
//	ok, err := rules.Verify(ctx)            // every few seconds; !ok asks for a Commit
//
// Calls are not concurrent, as the contract says; only [Rules.Stats] may be called at any time.
package iptables
