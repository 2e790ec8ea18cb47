package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// What the environment may ask of TestFaults.
const (
	// faultsFor is how long to go on, in all ("30m").
	faultsFor = "FAULTS_FOR"
	// faultsSeed makes the sequence of faults; by chance if it is not given. Rounds count up from it.
	faultsSeed = "FAULTS_SEED"
	// faultsOnly are the kinds of faults, separated by a comma; all if it is not given.
	faultsOnly = "FAULTS_ONLY"
	// faultsSummary is a file that the round's summary is written to. It is how the process of a round tells its parent.
	faultsSummary = "FAULTS_SUMMARY"
)

// A round has a network and a redial of its own, and lasts for roundTime at most, since [lab.Run] ends it after four minutes
// and a slow machine needs some of them to come to rest.
const (
	roundTime    = time.Minute
	faultClients = 10
)

// TestFaults drives faults, at random, against steady clients. As long as one backend works no client may fail, no byte may
// be lost, and in the end everything has to be as at first. To see a failure again, run its round: FAULTS_SEED says which.
func TestFaults(t *testing.T) {
	text := os.Getenv(faultsFor)
	if text == "" {
		t.Skip("takes its time: make test-faults, or FAULTS_FOR=20s")
	}
	total, err := time.ParseDuration(text)
	require.NoError(t, err, faultsFor)
	seed := uint64(time.Now().UnixNano()) % 1e9
	if text := os.Getenv(faultsSeed); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, faultsSeed)
	}
	// The process of a round has to come to the same rounds.
	t.Setenv(faultsSeed, fmt.Sprint(seed))
	kinds := faultKinds
	if text := os.Getenv(faultsOnly); text != "" {
		kinds = strings.Split(text, ",")
		for _, k := range kinds {
			require.Contains(t, faultKinds, k, faultsOnly)
		}
	}
	rounds := int((total + roundTime - 1) / roundTime)
	for i := range rounds {
		t.Run(fmt.Sprintf("seed-%d", seed+uint64(i)), func(t *testing.T) {
			summary := filepath.Join(t.TempDir(), "summary")
			if os.Getenv(faultsSummary) == "" {
				t.Setenv(faultsSummary, summary)
			}
			t.Cleanup(func() {
				if text, err := os.ReadFile(summary); err == nil {
					t.Logf("%s", text)
				}
			})
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				faultRound(t, node, seed+uint64(i), kinds, total/time.Duration(rounds))
			})
		})
		if t.Failed() {
			return
		}
	}
}

func faultRound(t *testing.T, node *lab.Host, seed uint64, kinds []string, duration time.Duration) {
	s := newTrial(t, node, newPlan(seed, slices.Clone(kinds)))
	defer func() {
		summary := fmt.Sprintf("seed %d, %s", seed, s.ledger.summary())
		_ = os.WriteFile(os.Getenv(faultsSummary), []byte(summary), 0o644)
		for _, v := range s.ledger.violations {
			t.Errorf("%s", v)
		}
		if t.Failed() {
			t.Logf("%s; the last events:\n%s\nthe same faults again: FAULTS_SEED=%d FAULTS_FOR=%s FAULTS_ONLY=%s go test -race -run '^TestFaults$' ./cmd/redial",
				summary, s.ledger.report(50), seed, duration, os.Getenv(faultsOnly))
		}
	}()
	before := s.footprint()
	s.startClients(seed, faultClients)
	for began := time.Now(); time.Since(began) < duration; {
		e := s.plan.next()
		s.carryOut(e)
		s.pace(e.pace)
		if s.violated() {
			return
		}
	}
	for _, e := range s.plan.rest() {
		s.carryOut(e)
	}
	s.settle(before)
}

func (s *trial) violated() bool {
	select {
	case <-s.ledger.violated:
		return true
	default:
		return false
	}
}
