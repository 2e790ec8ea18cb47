package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"
)

// prepareProcess does what is done once and needs privileges that serving does not. root is "/" but for tests. Nothing in it
// is worth not serving for.
func (o *options) prepareProcess(root string, log *logrus.Entry) {
	applySettings(root, o.conntrackSettings(onlineCores(root)), log)
	if !o.cluster() && !o.given("oom-score-adj") {
		return
	}
	if err := os.WriteFile(filepath.Join(root, "proc/self/oom_score_adj"), []byte(strconv.Itoa(int(o.oomScoreAdj))), 0); err != nil {
		log := log.WithError(err).WithField("value", o.oomScoreAdj)
		const message = "oom_score_adj cannot be set: lowering it takes CAP_SYS_RESOURCE"
		if o.given("oom-score-adj") {
			log.Warn(message + ", or leave --oom-score-adj out")
		} else {
			log.Debug(message)
		}
	}
}

// loops is how many event loops there should be: one per processor, unless GOMAXPROCS says otherwise. It gives the scheduler
// three times as many Ps, so that each loop, of TCP and of UDP, may keep one while it waits and there are others for
// everything else (relay.Config.Loops).
var loops = sync.OnceValue(func() int {
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(3 * n)
	return n
})
