// Package balancer decides which backend of a Service port takes the next connection.
//
// A [Balancer] serves one Service port (and one traffic class of it, where classes differ). It holds the usable
// backends, chooses among them by a [Scheduler], keeps a client on its backend where the Service asks for ClientIP
// affinity, puts backends last that have ceased to answer, and counts what became of each choice. It does not dial, does
// not know Kubernetes, and starts no goroutine; a [Prober], one for all balancers, dials ejected backends to see whether
// they are back.
//
//	b := balancer.New(prober)
//	b.Update(balancer.Config{Backends: usable, Affinity: 3 * time.Hour, Probe: true})
//
//	var tried []netip.AddrPort
//	for {
//		backend, ok := b.Pick(client, tried)
//		if !ok {
//			freed := b.Freed(tried) // nil: no backend; else a place in the queue
//			if freed == nil || !wait(freed) {
//				return errNoBackend
//			}
//			continue
//		}
//		conn, took, err := dial(backend) // and, after b.HedgeDelay(backend), b.Overdue and another one beside it
//		b.Report(client, backend, took, err)
//		if err == nil {
//			defer b.Release(backend)
//			return relay(conn)
//		}
//		if tried = append(tried, backend); !working && !b.Retry() { // working: b.Working, before the first pick
//			return errAllDead
//		}
//	}
//
// The caller owes a Report for every pick, and a Release for every Report without an error. Otherwise a backend stays
// charged with what is long over: it counts towards its limit, and in the eyes of lc, wlc, sed, nq and p2c.
//
// # Schedulers
//
//	rr      in turn                                        weights do not matter
//	wrr     in turn, more turns for more weight            exact over a period, turns of one backend spread over it
//	lc      the fewest connections                         weights do not matter
//	wlc     the fewest connections by weight
//	sed     the least (connections + 1) / weight
//	nq      an idle backend if there is one, else sed
//	random  by chance and weight
//	p2c     the less loaded by weight of two drawn         near to wlc, for sets of any size
//	sh      by the client's address, on a hash ring        a backend's leaving moves its own clients only
//	dh      by the address the client dialled, likewise
//	mh      by the client's address, through Maglev's      more even than sh; a few more clients move
//	        table
//
// A backend of weight 0 is quiesced: it gets no new connections, those of pinned clients and retries included, as long as
// another backend has weight. (IPVS lets persistent clients go on to such a server, unless expire_quiescent_template is
// set, as kube-proxy does.) If none has weight, all count as 1.
//
// All counts are this process's own. The proxies of other nodes do not know them, so where nodes are many and
// connections few, lc on all of them is not lc over all.
//
// lc, wlc, sed and nq look at every backend for each pick, some ten nanoseconds each; the others take the same time,
// or the logarithm, for any number.
//
// # Turns
//
// With rr, backends take turns in the order of their addresses, from a random first one: many nodes that learn of a
// Service at the same moment must not all open with the same backend. Over any run of picks the turns given to two
// backends differ by at most one, however many goroutines pick. A retry takes the next turn like any other pick, and
// turns of backends already tried are passed over for good, so the load of a dead backend spreads evenly over the others
// instead of doubling that of its neighbour. The same goes for wrr, by weight.
//
// An update does not restart the round. The backend whose turn it was is still the next one, or, if it left, the first
// one after it that stayed; a set that did not change moves nothing. kube-proxy's userspace mode shuffled and
// began again, which during a rollout sends most connections to whatever comes first. Only when no backend stayed does a
// new round begin, again at a random one. (A period of wrr begins at random whenever the set or a weight changes.)
//
// # Affinity
//
// A pin (client address -> backend) is made by the first pick and ends when it has not been used for Config.Affinity,
// when its backend leaves, even if the same address returns later, or when a dial to the backend is reported failed.
// Only a successful [Balancer.Report] counts as use: a client hammering at a dead backend does not stay on it. If a
// connection is reported successful while its client has no live pin, that backend becomes the pin. A pick that names
// the pinned backend as tried gets another one, but the pin stays until a failure is reported, so that dialling a
// second backend beside a slow one does not by itself move the client. It also stays while its backend is at its limit.
// A pick that finds the pinned backend ejected or quiesced moves the pin.
//
// Affinity comes before the scheduler. It is per Service port, as in kube-proxy in all its modes, not per Service. A
// backend's address includes the port, and the endpoints of two ports of one Service can be different sets: a named
// target port may be missing from some pods, and readiness comes per EndpointSlice. A pin shared between ports would have
// to be broken whenever the pod is not behind the other port, and workloads have been written against kube-proxy's scope.
//
// The key is the bare client address: IPv4-mapped IPv6 counts as IPv4 and zones are dropped. At most 65,536 clients are
// remembered per balancer, the longest unused are forgotten first ([Balancer.Evictions] counts them), so that forged UDP
// sources cannot exhaust memory. Expiry is lazy, by the monotonic clock: no goroutine sweeps, each new pin clears away up
// to two expired ones. A changed timeout applies to existing pins at once, counted from their last use.
//
// # Ejection
//
// Three refused dials in a row, or two that were not answered, or a mixture (a silence weighs as much as one and a half
// refusals), eject a backend for a second, and each time in a row for twice as long, up to a minute, a fifth more or
// less by chance. So do three connections in a row that [Balancer.Fail] is told of: in a row means here that none was
// released between them without Fail, since that they had been connected is what they have in common. An ejected
// backend is passed over by every scheduler and by pins. That is an order, not a refusal: a connection that has tried
// all others is given the ejected ones too, whichever has not been asked for the longest first. So no share of the set
// needs to be kept from ejection, and if all are out, connections go round over them until one answers.
//
// When its time is up, the Prober dials it (Config.Probe). If it answers it is back; if not, it is out for longer.
// Without a Prober that runs, one connection at a time is let through instead, until one succeeds. Any other success that
// is reported brings a backend back as well. With UDP a connection always succeeds, so an ejected backend is back by the
// first one when its time is up, and by nothing before.
//
// A backend that is back may be just starting up. It has a tenth of its weight at first and all of it after ten seconds.
// With lc that means a part of the connections that the others have; otherwise, having none, it would get all that come.
// sh, dh and mh have no slow start, for which clients would have to move twice. A backend that enters the set has
// none either: readiness is Kubernetes' word that it may have its share.
//
// Ejections belong to an incarnation of a backend, as its counters do. They end when it leaves the set, and are not
// touched by updates that keep it.
//
// # Suspects
//
// A silent backend is found out by its failures only when dials to it have been given up, which takes long: until then a
// burst would be sent to it. So the caller tells of a dial that has no answer after HedgeDelay ([Balancer.Overdue]). As
// long as its outcome is not known, the backend is a suspect: every scheduler chooses the others, and it again if there
// are none, if they are tried or full, or if all are suspects. One successful Report ends that, whichever dial it is of. A suspect
// is not ejected, and not passed over by pins: affinity ends with failures only.
//
// # Retries
//
// No connection fails, by the balancer's doing, while a backend works that is not ejected: [Balancer.Retry] then allows
// every further dial. Only when all are ejected, each having failed its last dials without one success since, are
// retries limited, so that a dead Service does not multiply the dials of all its clients: to one for every five
// connections or ten a second, whichever is more. Even then each connection has its first dial, to the backend that has
// not been asked for the longest, so that one that works again is found after at most as many connections as there are
// backends.
//
// # Limits
//
// Config.MaxPerBackend bounds picks in flight and connections together, exactly, however many goroutines pick.
// (Connections of a backend that left and returned count, except those whose pick was under way at the very moment.) At
// the limit, a backend is passed over; when all are, Pick finds nothing and [Balancer.Freed] is how to wait. All who
// wait are woken by each slot that frees, so let only the head of a queue wait there.
//
// # Concurrency
//
//   - All methods may be called from any goroutine.
//   - [Balancer.Pick] reads an immutable view through an atomic pointer. It takes no lock that [Balancer.Update] takes,
//     and allocates only to record a new pin. [Balancer.Report] takes a lock only to change an ejection, or where
//     somebody waits for a slot, and allocates only to record a failure.
//   - With affinity, a pick that finds its pin takes a read lock of the pin table; one that has to make it takes the
//     table's lock, so that the parallel first connections of one client agree on a backend. Update takes neither.
//   - Once Update has returned, picks come from the new backends only. A pick that runs beside Update sees either the
//     old or the new set, whole; such picks may give one backend a turn twice.
//   - Updates are serialised.
package balancer
