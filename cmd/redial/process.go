package main

import (
	"os"
	"path/filepath"
	"strconv"

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
