package main

import (
	"context"
	"os"
	"runtime/debug"
)

// garbagePercent is how much garbage there may be beside what is in use. Of that there is much with many Services, and it
// seldom changes, so that looking through it more often than by Go's default (100) costs little.
const garbagePercent = 50

// limitGarbage leaves alone what the environment says.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// returnMemory gives back to the system what the start has left: all objects have been in memory at once, as the API server
// sent them, and all rules as a text. By itself the runtime would keep it for minutes.
func (n *node) returnMemory(ctx context.Context) error {
	select {
	case <-n.proxier.Synced():
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
	return nil
}
