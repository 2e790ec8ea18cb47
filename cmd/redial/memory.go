package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage there may be beside what is in use, in percent of that: Go's default (100) where little is, and with
// many Services, of which what is in use seldom changes, no more than garbageSize or garbageLeast.
const (
	garbageStart = 50
	garbageMost  = 100
	garbageLeast = 16
	garbageSize  = 24 << 20
)

// settling is how long after the start what it took is given back: what works on the first Services holds on to them for a
// moment.
const settling = 5 * time.Second

// limitGarbage leaves alone what the environment says.
func limitGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// garbagePercent is for so many bytes in use.
func garbagePercent(inUse uint64) int {
	return int(min(max(garbageSize*100/max(inUse, 1), garbageLeast), garbageMost))
}

// keepMemoryLow gives back to the system what the start has left: all objects have been in memory at once, as the API
// server sent them, and all rules as a text. By itself the runtime would keep it for minutes. Then it limits garbage.
func (n *node) keepMemoryLow(ctx context.Context) error {
	select {
	case <-n.proxier.Synced():
	case <-ctx.Done():
		return nil
	}
	select {
	case <-time.After(settling):
	case <-ctx.Done():
		return nil
	}
	debug.FreeOSMemory()
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for before := 0; ; {
		metrics.Read(inUse)
		if percent := garbagePercent(inUse[0].Value.Uint64()); percent != before { // each setting stops the world
			limitGarbage(percent)
			before = percent
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
