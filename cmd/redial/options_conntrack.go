package main

import (
	"time"

	"github.com/spf13/pflag"
)

// conntrackOptions are settings of the kernel's connection tracking. 0 leaves one as it is.
type conntrackOptions struct {
	conntrackMaxPerCore     int32
	conntrackMin            int32
	conntrackTCPEstablished time.Duration
	conntrackTCPCloseWait   time.Duration
	conntrackTCPBeLiberal   bool
	conntrackUDP            time.Duration
	conntrackUDPStream      time.Duration
}

func defaultConntrackOptions() conntrackOptions {
	return conntrackOptions{
		conntrackMaxPerCore:     32 * 1024,
		conntrackMin:            128 * 1024,
		conntrackTCPEstablished: 24 * time.Hour,
		// An entry that is gone before the server gives up on its half of the connection leaves the server's FINs untranslated:
		// https://github.com/kubernetes/kubernetes/issues/32551.
		conntrackTCPCloseWait: time.Hour,
	}
}

func (o *conntrackOptions) addFlags(f *pflag.FlagSet) {
	f.Int32Var(&o.conntrackMaxPerCore, "conntrack-max-per-core", o.conntrackMaxPerCore, "connections to be tracked at most, for each core; raised to and never lowered; 0: left alone")
	f.Int32Var(&o.conntrackMin, "conntrack-min", o.conntrackMin, "the same, for a node of few cores")
	f.DurationVar(&o.conntrackTCPEstablished, "conntrack-tcp-timeout-established", o.conntrackTCPEstablished, "for how long an idle TCP connection is tracked; 0: left alone")
	f.DurationVar(&o.conntrackTCPCloseWait, "conntrack-tcp-timeout-close-wait", o.conntrackTCPCloseWait, "the same, of a connection that one side has ended; 0: left alone")
	f.BoolVar(&o.conntrackTCPBeLiberal, "conntrack-tcp-be-liberal", o.conntrackTCPBeLiberal, "track TCP packets outside of the window too")
	f.DurationVar(&o.conntrackUDP, "conntrack-udp-timeout", o.conntrackUDP, "for how long a UDP flow without an answer is tracked; 0: left alone")
	f.DurationVar(&o.conntrackUDPStream, "conntrack-udp-timeout-stream", o.conntrackUDPStream, "for how long an answered UDP flow is tracked; 0: left alone")
}

func (o *options) validateConntrack(c *complaints) {
	if o.conntrackMaxPerCore < 0 {
		c.add("--conntrack-max-per-core %d: must not be negative", o.conntrackMaxPerCore)
	}
	if o.conntrackMin < 0 {
		c.add("--conntrack-min %d: must not be negative", o.conntrackMin)
	}
	c.notNegative("conntrack-tcp-timeout-established", o.conntrackTCPEstablished)
	c.notNegative("conntrack-tcp-timeout-close-wait", o.conntrackTCPCloseWait)
	c.notNegative("conntrack-udp-timeout", o.conntrackUDP)
	c.notNegative("conntrack-udp-timeout-stream", o.conntrackUDPStream)
}
