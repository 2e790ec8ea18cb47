package metrics

import (
	"time"

	"redial/config"
)

// Snapshot is what is shown at one scrape. Counts since the start must never be less than in the snapshot before, or
// Prometheus takes them to have started anew from zero: sums over objects that come and go have to include those that have gone.
// Fields that are zero are shown as zero; times that are zero are not shown.
type Snapshot struct {
	// LastQueued is when a sync was last asked for, LastSynced when one last succeeded.
	LastQueued, LastSynced time.Time
	// SyncFailures counts syncs after which the rules may not have been as wanted.
	SyncFailures uint64
	// ServiceChanges and EndpointChanges count changes of objects; those that are not in force yet are Pending.
	ServiceChanges, EndpointChanges               uint64
	PendingServiceChanges, PendingEndpointChanges int
	// SourceSynced says that the source has delivered all there was at the start, LastEvent is when it last said something.
	SourceSynced bool
	LastEvent    time.Time
	// Delivered is when the source had delivered that.
	Delivered time.Time

	// Families are those that are served.
	Families map[config.Family]Family
	// Serving and Refusing count frontends: one for each Service port, family and pool, with usable backends or without.
	Serving, Refusing int
	// Shared counts those of them that share a proxy port.
	Shared int
	// Limits are of what all Services share, and Lag is how long the slowest event loop took to get round to a request just
	// now.
	Limits Limits
	Lag    time.Duration
	// Balancers adds up all frontends, those that have been closed included.
	Balancers Balancers
	// TCP and UDP add up all frontends, those that have been closed included.
	TCP, UDP Traffic
	// Services are all that are known, each once, in any order.
	Services []Service
}

// Family is the part of Snapshot about the rules of one IP family.
type Family struct {
	// Tables are those that rules were written to; nil without rules.
	Tables []Table
	// Restores counts executions of iptables-restore, RestoreFailures those that failed, PartialRestoreFailures those of
	// them that were to write only what had changed.
	Restores, RestoreFailures, PartialRestoreFailures uint64
	// Restoring and Reading are how long iptables-restore and iptables-save have run, all executions together.
	Restoring, Reading time.Duration
	// Repairs counts the times that rules had been changed by others.
	Repairs uint64
	// Quarantined is the number of bindings left out now, because the kernel refuses their rules.
	Quarantined int
	// FlowsRemoved counts connection tracking entries that contradicted the rules.
	FlowsRemoved uint64
	// NoLocalInternal and NoLocalExternal count Service ports whose internal or external traffic policy is Local while there
	// are endpoints elsewhere only.
	NoLocalInternal, NoLocalExternal int
	// Broken means that the family is not steered.
	Broken bool
}

// Table is one table of iptables, such as "nat".
type Table struct {
	Name string
	// Rules is the number of our rules in force, Written of those written by the last sync.
	Rules, Written int
}

// Limits are how much of what all Services share is in use, and how much there may be.
type Limits struct {
	Descriptors, MaxDescriptors int64 // of listeners and TCP connections
	Connections, MaxConnections int64 // of TCP
	Sessions, MaxSessions       int64 // of UDP
	Listeners, MaxListeners     int
}

// Balancers counts what happened to backends, and for want of them, since the start.
type Balancers struct {
	Suspicions     uint64 // backends avoided because a dial was overdue
	Ejections      uint64 // begun, or made longer by a failed test
	ProbesAnswered uint64 // tests of ejected backends
	ProbesFailed   uint64
	Full           uint64 // choices in vain because all backends had as many connections as they may
	RetriesRefused uint64 // dials after a failed one that the retry budget did not allow
	Evictions      uint64 // clients whose affinity was forgotten because there were too many
}

// Traffic counts connections, or sessions of UDP, since the start. Each that was accepted ends up in one of the next five.
type Traffic struct {
	Accepted  uint64
	Connected uint64 // reached a backend
	Failed    uint64 // every backend refused, or the time for dialling was over
	NoBackend uint64 // there was none to try
	Abandoned uint64 // the client left before a backend answered
	Limited   uint64 // there were as many as there may be

	Queued        uint64 // connections that waited for a limit's sake
	QueueTimeouts uint64 // ... for too long; they are among Limited
	Hedges        uint64 // dials made beside a silent one
	EarlyCloses   uint64 // backends that closed or reset a connection before a byte had moved
	Idle          uint64 // connections ended for being idle
	Aged          uint64 // ... for their age
	Drained       uint64 // ... because their backend had left; sessions, too
	ShareWaits    uint64 // times that connections began to wait because a Service had its share of all there may be

	Active       int64  // now
	Retried      uint64 // connections that reached a backend after a failed dial
	Retries      uint64 // dials made after a failed one
	BytesIn      uint64 // from clients to backends
	BytesOut     uint64 // from backends to clients
	Resets       uint64 // connections ended by a reset or timeout of either peer
	HalfClosed   uint64 // connections cut because one direction had ended long before the other
	AcceptErrors uint64 // accept(2) failures: out of descriptors or memory
	FDWaits      uint64 // connections that waited for file descriptors
	Strays       uint64 // connections to a shared proxy port that were reset since their destination was nobody's

	// Of UDP only:
	DatagramsIn  uint64 // from clients
	DatagramsOut uint64 // to clients
	Unsendable   uint64 // datagrams of either direction that could not be sent on
	Overflows    uint64 // datagrams the kernel dropped for want of receive buffer
	Expired      uint64 // sessions that ended by being idle
	Evicted      uint64 // sessions that ended to make room for others
}

// Service is one Service.
type Service struct {
	Name config.ServiceName
	// Skipped means that it is not to be proxied: it is headless, for example.
	Skipped bool
	// Problems are the reasons of its problems, config.Problem.Reason.
	Problems []string
	// Ready and Terminating count endpoints in use, Unused those that are not; each once for every Service port.
	Ready, Terminating, Unused int
	// Ejected counts those that get no connections for their failures, once for every frontend.
	Ejected int
	// Waiting is how many connections wait for a limit's sake.
	Waiting int
	// Traffic adds up its present frontends, of TCP and UDP. Only [Config].PerService asks for it; nil means none.
	Traffic *Traffic
}
