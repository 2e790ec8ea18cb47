package relay_test

import (
	"net/netip"
	"os"
	"testing"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
	"redial/proxy/relay/relaytest"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func TestRelay(t *testing.T) { relaytest.Run(t, engine(relay.NewTimed)) }

// Connections that move from loop to loop all the time behave like those that stay.
func TestRelayMoving(t *testing.T) { relaytest.Run(t, engine(relay.NewGenerous)) }

func engine(new func(relay.Config) *relay.Timed) relaytest.New {
	return func(cfg relay.Config) (relaytest.Engine, relaytest.Listen) {
		r := new(cfg)
		return r, func(addr netip.AddrPort, name string, b relay.Balancer) (relaytest.TCPListener, error) {
			return r.Listen(addr, name, b)
		}
	}
}

func TestUDPRelay(t *testing.T) {
	relaytest.RunUDP(t, func(cfg relay.Config) (relaytest.Engine, relaytest.ListenUDP) {
		r := relay.NewFrozen(cfg)
		return r, func(addr netip.AddrPort, name string, b relay.Balancer) (relaytest.UDPListener, error) {
			return r.ListenUDP(addr, name, b)
		}
	})
}
