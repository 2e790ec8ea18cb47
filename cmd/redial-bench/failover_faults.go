package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// scene is a set of backends and of clients, and what happens to them. The first fault is none: what the others are
// compared with.
type scene struct {
	name    string
	pods    int
	ten     bool // at the rate for ten backends
	wave    bool // clients at once, to processes that have just been started
	greeted bool // the backend speaks first
	faults  []fault
}

// fault is what is done to the backends. Nothing tells the systems: it is the time before a control plane notices.
type fault struct {
	name   string
	before func(*pods) error // the clients that are counted; nil: nothing
	// during them, and to be over soon after ctx is done. d is how long they are begun for.
	during func(ctx context.Context, p *pods, d time.Duration) error
	// No client has reached the faulty backend before it fails, so each can be saved.
	lossless bool
}

const allWell = "all well"

// The backend at fault is the last one: without the first one's address, the host would lose the others' too.
var scenes = []scene{
	{name: "three backends", pods: 3, faults: []fault{
		{name: allWell, lossless: true},
		{name: "one refuses", before: func(p *pods) error { return p.tell("gone %d", p.last()) }, lossless: true},
		{name: "one is silent", before: (*pods).silence, lossless: true},
		{name: "one comes and goes", during: flap},
		{name: "one resets what it has accepted", before: func(p *pods) error { return p.tell("resets %d", p.last()) }},
	}},
	{name: "three backends that speak first", pods: 3, greeted: true, faults: []fault{
		{name: allWell, lossless: true},
		{name: "one resets what it has accepted", before: func(p *pods) error { return p.tell("resets %d", p.last()) }},
	}},
	{name: "ten backends", pods: 10, ten: true, faults: []fault{
		{name: allWell, lossless: true},
		{name: "one is killed", during: later(func(p *pods) error { return p.tell("gone %d", p.last()) })},
		{name: "one vanishes", during: later((*pods).vanish)},
	}},
	{name: "all at once, three backends", pods: 3, wave: true, faults: []fault{
		{name: allWell, lossless: true},
		{name: "one is silent", before: (*pods).silence, lossless: true},
	}},
}

// later lets a quarter of the clients pass before.
func later(strike func(*pods) error) func(context.Context, *pods, time.Duration) error {
	return func(ctx context.Context, p *pods, d time.Duration) error {
		if pause(ctx, d/4) {
			return strike(p)
		}
		return nil
	}
}

// pause reports whether the time has passed before ctx was done.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// pods are the backends of a scene: addresses of one host, and one process. They are for one goroutine at a time.
type pods struct {
	n       *network
	count   int
	orders  io.WriteCloser
	answers *bufio.Reader
}

func podAddress(i int) string { return fmt.Sprintf("198.18.1.%d", 2+i) }

func podAddresses(count int) []string {
	a := make([]string, count)
	for i := range a {
		a[i] = podAddress(i)
	}
	return a
}

func startPods(n *network, count int) (*pods, error) {
	p := &pods{n: n, count: count}
	args := []string{"failover-peer"}
	for i, address := range podAddresses(count) {
		if i > 0 {
			if err := n.backend.AddAddress("eth0", address+"/24"); err != nil {
				return nil, err
			}
		}
		args = append(args, fmt.Sprintf("%s:%d", address, backendPort))
	}
	cmd := peer(args...)
	var err error
	if p.orders, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.answers = bufio.NewReader(out)
	if err := n.backend.Start(cmd); err != nil {
		return nil, fmt.Errorf("starting the backends: %w", err)
	}
	return p, p.obeyed()
}

// last is the backend that a fault is for.
func (p *pods) last() int { return p.count - 1 }

// tell gives an order and waits until it has been carried out.
func (p *pods) tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.orders, format+"\n", args...); err != nil {
		return fmt.Errorf("telling the backends "+format+": %w", append(args, err)...)
	}
	return p.obeyed()
}

func (p *pods) obeyed() error {
	line, err := p.answers.ReadString('\n')
	if err != nil || line != "ok\n" {
		return errors.Join(fmt.Errorf("the backends say %q", line), err)
	}
	return nil
}

// silence lets a backend get nothing any more, and say nothing.
func (p *pods) silence() error {
	_, err := p.n.backend.Output("iptables", "-A", "INPUT", "-d", podAddress(p.last()), "-j", "DROP")
	return err
}

// vanish takes a backend's address away, and with it the node's knowledge of where it is: the node asks for it, in vain
// and for three seconds, before it says that the host cannot be reached.
func (p *pods) vanish() error {
	if _, err := p.n.backend.Output("ip", "address", "delete", podAddress(p.last())+"/24", "dev", "eth0"); err != nil {
		return err
	}
	_, err := p.n.node.Output("ip", "neighbour", "delete", podAddress(p.last()), "dev", p.n.backend.Uplink)
	return err
}

// flap lets a backend be gone for half of every second.
func flap(ctx context.Context, p *pods, _ time.Duration) error {
	for {
		for _, order := range []string{"gone", "well"} {
			if err := p.tell("%s %d", order, p.last()); err != nil {
				return err
			}
			if !pause(ctx, time.Second/2) {
				return nil
			}
		}
	}
}

// heal makes all well. It is for the end of a scene, too: the next one can have more backends, and another that is at fault.
func (p *pods) heal() error {
	if _, err := p.n.backend.Output("iptables", "-F", "INPUT"); err != nil {
		return err
	}
	address := podAddress(p.last()) + "/24"
	if _, err := p.n.backend.Output("ip", "address", "replace", address, "dev", "eth0"); err != nil {
		return err
	}
	if _, err := p.n.node.Output("ip", "neighbour", "flush", "dev", p.n.backend.Uplink); err != nil {
		return err
	}
	errs := []error{p.tell("greet 0")}
	for i := range p.count {
		errs = append(errs, p.tell("well %d", i))
	}
	return errors.Join(errs...)
}
