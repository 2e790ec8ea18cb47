package kube

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	logger, _ := logtest.NewNullLogger()
	if err := RouteKlog(logrus.NewEntry(logger)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestRouteKlog(t *testing.T) {
	logger, hook := logtest.NewNullLogger()
	require.NoError(t, RouteKlog(logrus.NewEntry(logger)))
	say := func() {
		klog.Info("an info")
		klog.Warning("a warning\n")
		klog.Errorf("an %s", "error")
		klog.ErrorS(errors.New("boom"), "structured", "object", "default/web")
		klog.Background().Error(errors.New("bang"), "contextual")
		klog.Background().Info("contextual info")
	}
	said := func() []string {
		var out []string
		for _, e := range hook.AllEntries() {
			require.Equal(t, "client-go", e.Data["component"])
			out = append(out, e.Level.String()+" "+e.Message)
		}
		hook.Reset()
		return out
	}
	say()
	loud := []string{"warning a warning", "error an error", `error "structured" err="boom" object="default/web"`, `error "contextual" err="bang"`}
	require.Equal(t, loud, said(), "each once, and no infos")
	logger.SetLevel(logrus.DebugLevel)
	say()
	require.Equal(t, append([]string{"debug an info"}, append(loud, `debug "contextual info"`)...), said())
}
