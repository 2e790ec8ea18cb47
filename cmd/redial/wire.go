package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/balancer"
	"redial/config"
	"redial/config/kubeproxy"
	"redial/proxy"
	"redial/proxy/admin"
	"redial/proxy/relay"
)

// node is a running proxy: every package put together. Nothing else knows them all.
type node struct {
	opts    *options
	log     *logrus.Entry
	started time.Time
	fds     int
	tracker *config.Tracker
	source  serviceSource
	steer   *interception
	relay   *relay.Relay
	proxier *proxy.Proxier
	prober  *balancer.Prober
	servers *servers

	nodePorts proxy.NodePortAddresses
}

// run serves until ctx ends, then drains. An error is one of starting, or of a part that cannot go on.
func run(ctx context.Context, opts *options) error {
	if err := opts.checkSource(); err != nil {
		return err
	}
	log, err := opts.logger()
	if err != nil {
		return err
	}
	fds, err := relay.RaiseNoFile()
	if err != nil {
		log.WithError(err).Warn("going on with the present limit")
	}
	log.WithFields(logrus.Fields{"version": versionString(), "fds": fds}).Info("starting")
	limitGarbage(garbageStart)
	warnOfSharedPorts(opts.ports, log)
	if rivals := opts.rivals(); len(rivals) > 0 {
		log.WithField("families", rivals).Warn("kube-proxy's rules are in force: " + rivalsAdvice)
	}
	// First of all, since it also keeps a second instance from starting.
	socket, err := admin.Listen(opts.adminSocket)
	if err != nil {
		return err
	}
	unlock := func() {}
	if opts.interception != interceptNone {
		unlock, err = lockSteering()
	}
	var n *node
	if err == nil {
		n, err = wire(opts, log, fds)
	}
	if err != nil {
		socket.Close()
		unlock()
		return err
	}
	// After the rules' first use, which loads the module that most settings are of.
	opts.prepareProcess("/", log)
	// Two ways to end: parts are cut short by a failure of one, ending asks all to stop in good order.
	parts, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	ending, end := context.WithCancelCause(ctx)
	defer end(nil)
	var running sync.WaitGroup
	start := func(part func(context.Context) error) {
		running.Go(func() {
			if err := part(parts); err != nil {
				stop(err)
			}
		})
	}
	start(n.source.Run)
	start(n.proxier.Run)
	if n.steer.routes != nil {
		start(func(ctx context.Context) error { return n.steer.routes.Watch(ctx, n.proxier.Look) })
	}
	start(n.prober.Run)
	start(n.servers.run)
	start(n.keepMemoryLow)
	start(func(ctx context.Context) error {
		return admin.Serve(ctx, socket, func() any { return n.status() })
	})
	if opts.configFile != "" {
		running.Go(func() {
			if err := kubeproxy.Watch(ending, opts.configFile, opts.content, opts.usable, log); err != nil {
				end(err)
			}
		})
	}
	select {
	case <-parts.Done():
	case <-ending.Done():
		n.drain(parts)
	}
	stop(context.Cause(ending))
	end(nil)
	running.Wait()
	cut := n.relay.Shutdown(parts)
	log.WithFields(logrus.Fields{"cut": cut, "pid": os.Getpid()}).Info("stopped")
	unlock()
	switch err := context.Cause(parts); {
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, kubeproxy.ErrChanged):
		// An error, as in kube-proxy, since units with Restart=on-failure are around.
		return fmt.Errorf("%s: %w: ending, to be started again with it", opts.configFile, err)
	default:
		return err
	}
}

func wire(opts *options, log *logrus.Entry, fds int) (*node, error) {
	n := &node{opts: opts, log: log, started: time.Now(), fds: fds}
	n.tracker = config.NewTracker(config.Options{
		Node:               config.Node{Name: opts.nodeName},
		AwaitNode:          opts.cluster(),
		PrimaryIP:          opts.nodeIP,
		ServiceProxyName:   opts.serviceProxyName,
		DisableExternalIPs: opts.disableExternalIPs,
	})
	var err error
	if n.source, err = newSource(opts, n.tracker, log); err != nil {
		return nil, err
	}
	if n.steer, err = opts.intercept(log); err != nil {
		return nil, err
	}
	n.relay = relay.New(relay.Config{
		DialTimeout:      opts.dialTimeout,
		TryTimeout:       opts.tryTimeout,
		HalfCloseTimeout: opts.halfClose,
		KeepAlive:        opts.keepAlive,
		UserTimeout:      opts.userTimeout,
		UDPTimeout:       opts.udpTimeout,
		MaxConnections:   opts.maxConnections,
		Mark:             n.steer.mark,
		ListenControl:    n.steer.listen,
		Loops:            loops(),
		Log:              log,
	})
	if n.nodePorts, err = proxy.ParseNodePortAddresses(opts.nodePortAddresses); err != nil {
		return nil, fmt.Errorf("--nodeport-addresses: %w", err)
	}
	if warning := n.nodePorts.Warning(); warning != "" {
		log.Warn(warning)
	}
	n.servers = newServers(n)
	n.prober = balancer.NewProber(n.relay.Probe)
	n.proxier = proxy.New(proxy.Config{
		Tracker:              n.tracker,
		Interceptor:          n.steer.Interceptor,
		Relay:                n.relay,
		Ports:                opts.ports,
		MinSyncPeriod:        max(opts.minSyncPeriod, time.Nanosecond), // 0 is for its default
		SyncPeriod:           opts.syncPeriod,
		NodePortAddresses:    n.nodePorts,
		NoLocalhostNodePorts: !opts.localhostNodePorts,
		LocalPods: proxy.LocalPods{
			Prefixes: opts.localPods.prefixes, NodeCIDR: opts.localPods.nodeCIDR, Interfaces: opts.localPods.interfaces,
		},
		Scheduler:    balancer.Scheduler(opts.scheduler),
		Prober:       n.prober,
		HealthChecks: healthChecks{n.servers.services},
		Report:       n.source.Report,
		Observer:     n.servers.metrics,
		Log:          log,
	})
	if c, ok := n.source.(*cluster); ok && n.steer.routes != nil && len(opts.serviceRanges) == 0 {
		c.source.FollowServiceCIDRs(func(ranges []netip.Prefix) {
			n.steer.ranges.set(ranges)
			n.proxier.Resync()
		})
	}
	return n, nil
}

// drain tells load balancers and the kubelet that the node is on its way out, and goes on as before until no connection is
// live, or the time is over. Nothing is refused meanwhile: the next process can only start when this one has ended, so
// whoever were refused now would find nobody else on this node. What is live in the end is cut. The rules stay: whoever
// starts next takes them over, and until then clients are refused rather than sent somewhere else.
func (n *node) drain(failed context.Context) {
	n.servers.node.Stop()
	if n.proxier.SyncStatus().Syncs == 0 {
		return // nobody has been served
	}
	n.log.WithField("timeout", n.opts.drainTimeout).Info("stopping: serving on until the live connections have ended")
	deadline := time.After(n.opts.drainTimeout)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !n.relay.CloseIdle() {
		select {
		case <-tick.C:
		case <-deadline:
			return
		case <-failed.Done():
			return
		}
	}
}

// status is the admin API's answer.
func (n *node) status() status {
	s := status{
		Version:      versionString(),
		PID:          os.Getpid(),
		Started:      n.started,
		FDLimit:      n.fds,
		Manifests:    n.opts.manifests,
		Problems:     n.source.Problems(),
		Following:    n.source.Following(),
		Interception: n.steer.name,
		ProxyPorts:   n.opts.ports.String(),
		Usage:        n.relay.Usage(),
		Totals:       n.relay.Totals(),
		Status:       n.proxier.Status(),
	}
	if n.steer.rules != nil {
		s.IPTables = newSteering(n.steer.rules.Stats(), n.steer.routed)
		s.IPTables.Rivals = n.opts.rivals()
	}
	if n.steer.routes != nil {
		s.Local = newLocalSteering(n.steer)
	}
	return s
}
