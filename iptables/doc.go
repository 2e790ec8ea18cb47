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
//	                                           │ last: addrtype LOCAL, within the NodePort addresses
//	                                           ▼
//	                                   REDIAL-NODEPORTS ─ one rule per NodePort, or a tree
//
//	        a rule of either may lead on ─► REDIAL-VIP-… ─► REDIAL-IN-…: policies, below
//
//	filter  OUTPUT ──────► REDIAL-OUTPUT ─ TCP port 9, through a rule: DROP (only while something is to be dropped)
//	        INPUT ───────► REDIAL-INPUT ─ port 9, through a rule: DROP (likewise)
//	                                      health check ports ──► REDIAL-HEALTH: ACCEPT
//	                                      proxy ports: through a rule ACCEPT, directly REJECT
//
// The rule of a VIP ends in REDIRECT, which is valid in both hooks, so both share the chains. Where REDIRECT would drop
// packets, because the interface they come in by has no address, every rule ends in DNAT to an address of the node
// instead; see [Target].
//
// # Policies
//
// The nat table cannot drop. Packets to be dropped are led to the discard port, 9, like others to a proxy port, and the
// filter table drops what some rule translated to it: outsiders, pods and the node itself end there alike, and a real
// discard server is not touched. Without a filter table they are refused. They never go on to where the network leads.
//
// A binding that treats clients differently gets chains of its own, named after a hash of its VIP. REDIAL-VIP-… asks
// whether the source is in the binding's ranges, and drops everybody else, pods included. Then clients on this node, which
// are those with an address of the node and those that come from its pods (by source or by interface), part from the
// others; if ranges came first, in REDIAL-IN-…. If one of the node's addresses is in the ranges, the node may also send
// from the VIP, as it does where the VIP is its own; a Verify notices when that changes.
//
// Where NodePorts are open is asked of the kernel (addrtype LOCAL) within the given prefixes, so an address that comes
// later is open at once.
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
// firewalld's own nftables table, and a program that refuses in INPUT before us refuses what we would drop. Of connection
// tracking it deletes only entries of UDP that contradict its rules: TCP connections outlive a change of policy. Rules
// stay when the process ends.
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
