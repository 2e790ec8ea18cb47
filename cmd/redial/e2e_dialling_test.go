package main

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

const clusterIP1 = "198.18.100.1"

func TestNoConnectionFailsWhileOneBackendWorks(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "good", 1)
		addBackend(t, node, "refusing", 2).refuse()
		addBackend(t, node, "silent", 3).silence()
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1), ip4(2), ip4(3)))
		r.awaitServed("web")

		answers, failures := crowd(2000, 50, client, clusterIP1+":80")
		assert.Empty(t, failures)
		assert.Equal(t, map[string]int{"good": 2000}, answers)

		front := r.await("all connections accounted for", func(s *status) bool { return s.front("web").Stats.Active == 0 }).front("web")
		assert.EqualValues(t, 2000, front.Stats.Connected)
		assert.Zero(t, front.Stats.Failed+front.Stats.NoBackend+front.Stats.Abandoned)
		// Two thirds of the turns would go to backends that do not answer. What is sent there before they are ejected, and to
		// see whether they are back, needs another backend; the rest does not get that far.
		assert.Positive(t, front.Stats.Retried, "connections that needed another backend")
		assert.Less(t, front.Stats.Retried, uint64(500), "connections that needed another backend")
	})
}

// A silent backend costs those that were sent to it, and nobody else. Patience is endless here, so that those stay for
// the whole test: if dials queued behind each other, the others would stay too.
func TestSilentBackendDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "good", 1)
		addBackend(t, node, "silent", 2).silence()
		client := addHost(t, node, "client", 9)
		r := startRedial(t, unhedged(web("web", clusterIP1, ip4(1), ip4(2))), "--dial-timeout=1h", "--dial-try-timeout=1h")
		r.awaitServed("web")

		const n = 100
		var answered, running sync.WaitGroup
		answered.Add(n / 2)
		calls := make([]*call, n)
		for i := range calls {
			c, err := connect(client, clusterIP1+":80")
			require.NoError(t, err)
			calls[i] = c
			running.Go(func() {
				// Without a deadline: those at the silent backend wait until the end of the test.
				if line, err := c.lines.ReadString('\n'); err == nil && line == "good\n" {
					answered.Done()
				}
			})
		}
		answered.Wait()
		front := r.await("all connections accepted", func(s *status) bool { return s.front("web").Stats.Accepted == n }).front("web")
		assert.EqualValues(t, n/2, front.Stats.Connected, "every turn of the good backend")
		assert.EqualValues(t, n, front.Stats.Active)
		for _, b := range front.Backends {
			assert.EqualValues(t, n/2, b.Picked, "turns of %s", b.Address)
		}
		for _, c := range calls {
			c.Close()
		}
		running.Wait()
	})
}

func TestClientIsResetWhenNoBackendAnswers(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1).refuse()
		addBackend(t, node, "b", 2).refuse()
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1), ip4(2)))
		r.awaitServed("web")

		_, err := ask(client, clusterIP1+":80")
		require.Error(t, err)
		s := r.status().front("web").Stats
		assert.EqualValues(t, 1, s.Failed)
		assert.EqualValues(t, 1, s.Retries, "each backend is dialled once")
	})
}
