package main

import (
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"redial/balancer"
)

// relayOptions say how connections and sessions are served.
type relayOptions struct {
	dialTimeout  time.Duration
	tryTimeout   time.Duration
	halfClose    time.Duration
	keepAlive    time.Duration
	userTimeout  time.Duration
	udpTimeout   time.Duration
	drainTimeout time.Duration
	scheduler    string
	// maxConnections is of TCP, all Services together; 0: as many as file descriptors allow.
	maxConnections int
}

func defaultRelayOptions() relayOptions {
	return relayOptions{
		dialTimeout:  5 * time.Second,
		tryTimeout:   250 * time.Millisecond,
		halfClose:    time.Hour,
		keepAlive:    15 * time.Second,
		userTimeout:  2 * time.Minute,
		udpTimeout:   time.Minute,
		drainTimeout: 10 * time.Second,
		scheduler:    string(balancer.RoundRobin),
	}
}

func (o *relayOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.scheduler, "scheduler", o.scheduler, "how a backend is chosen, where the Service does not say (annotation redial/scheduler): rr, wrr, lc, wlc, sed, nq, sh, dh, mh as in ipvsadm(8), random, or p2c (the less busy of two chosen by chance)")
	f.IntVar(&o.maxConnections, "max-connections", o.maxConnections, "how many TCP connections there may be, of all Services together; those beyond it wait to be accepted. 0: as many as file descriptors allow, two each. A Service that has many leaves some to the others; to bound it, use the annotation redial/max-connections")
	f.DurationVar(&o.dialTimeout, "dial-timeout", o.dialTimeout, "how long one client connection may look for a backend that answers, all attempts together")
	f.DurationVar(&o.tryTimeout, "dial-try-timeout", o.tryTimeout, "how long a backend may stay silent before another one is dialled")
	f.DurationVar(&o.halfClose, "half-close-timeout", o.halfClose, "ends a connection of which one direction has ended and the other has been idle for so long")
	f.DurationVar(&o.keepAlive, "tcp-keepalive", o.keepAlive, "TCP keep-alive interval, towards clients and backends")
	f.DurationVar(&o.userTimeout, "tcp-user-timeout", o.userTimeout, "how long sent bytes may stay unacknowledged before a connection is given up")
	f.DurationVar(&o.udpTimeout, "udp-timeout", o.udpTimeout, "ends a UDP session (a client address and its backend) that has been idle for so long, in both directions (kube-proxy, while it had the flag: 250ms)")
	f.DurationVar(&o.drainTimeout, "drain-timeout", o.drainTimeout, "how long to serve on after SIGTERM while connections are live; a second signal exits at once")
}

func (o *options) validateRelay(c *complaints) {
	c.positive("dial-timeout", o.dialTimeout)
	c.positive("dial-try-timeout", o.tryTimeout)
	c.positive("half-close-timeout", o.halfClose)
	c.positive("tcp-keepalive", o.keepAlive)
	c.positive("tcp-user-timeout", o.userTimeout)
	c.positive("udp-timeout", o.udpTimeout)
	c.notNegative("drain-timeout", o.drainTimeout)
	if _, err := balancer.ParseScheduler(o.scheduler); err != nil {
		c.add("--scheduler: %w", err)
	}
	if o.maxConnections < 0 {
		c.add("--max-connections %d: must not be negative", o.maxConnections)
	}
	if o.tryTimeout > o.dialTimeout {
		c.add("--dial-try-timeout %s: must not be more than --dial-timeout %s", o.tryTimeout, o.dialTimeout)
	}
	// https://github.com/kubernetes/kubernetes/issues/14939: files of old clusters hold kube-proxy's default.
	if o.udpTimeout > 0 && o.udpTimeout < time.Second {
		o.note(logrus.WarnLevel, "answers that take longer than --udp-timeout (udpIdleTimeout in a file) are lost, and resolvers wait for seconds: leave it out for the default",
			logrus.Fields{"udpTimeout": o.udpTimeout, "default": defaultRelayOptions().udpTimeout})
	}
}
