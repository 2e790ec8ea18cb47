package balancer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"redial/balancer"
)

// A client's backend stops answering: the client is moved once and then stays where it connected.
func Example() {
	alive, dead := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	dial := func(backend netip.AddrPort) error {
		if backend == dead {
			return errors.New("connection refused")
		}
		return nil
	}

	b := balancer.New(nil)
	b.Update(balancer.Config{Backends: []balancer.Backend{{Addr: alive, Weight: 1}, {Addr: dead, Weight: 1}}, Affinity: time.Hour})
	client := netip.MustParseAddr("192.0.2.1")
	for range 3 {
		var tried []netip.AddrPort
		for {
			backend, ok := b.Pick(client, tried)
			if !ok {
				fmt.Println("no backend left")
				break
			}
			err := dial(backend)
			b.Report(client, backend, 0, err)
			if err != nil {
				tried = append(tried, backend)
				continue
			}
			fmt.Println("connected to", backend)
			b.Release(backend)
			break
		}
	}
	// Output:
	// connected to 10.0.0.1:80
	// connected to 10.0.0.1:80
	// connected to 10.0.0.1:80
}
