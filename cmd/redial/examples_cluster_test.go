package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// clusterObjects reads the documents of an example, strictly.
func clusterObjects(t *testing.T, file string) (sets []appsv1.DaemonSet) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(examplesDir, "cluster", file))
	require.NoError(t, err)
	for _, document := range strings.Split(string(content), "\n---\n") {
		var meta metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(document), &meta))
		var object any
		switch meta.Kind {
		case "DaemonSet":
			object = &appsv1.DaemonSet{}
		case "ServiceAccount":
			object = &v1.ServiceAccount{}
		case "ClusterRoleBinding":
			object = &rbacv1.ClusterRoleBinding{}
		default:
			require.Fail(t, "a kind that this test does not know", meta.Kind)
		}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), object), "%s: %s", file, meta.Kind)
		if set, ok := object.(*appsv1.DaemonSet); ok {
			sets = append(sets, *set)
		}
	}
	return sets
}

func TestDaemonSets(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"daemonset.yaml", "trial.yaml"} {
		sets := clusterObjects(t, file)
		require.Len(t, sets, 1, file)
		pod := sets[0].Spec.Template
		assert.Equal(t, sets[0].Spec.Selector.MatchLabels, pod.Labels)
		assert.True(t, pod.Spec.HostNetwork, "the rules of the node, not of the pod")
		require.Len(t, pod.Spec.Containers, 1)
		c := pod.Spec.Containers[0]

		args := make([]string, len(c.Args))
		for i, a := range c.Args {
			args[i] = strings.ReplaceAll(a, "$(NODE_NAME)", "node1")
		}
		o := mustParse(t, args...)
		assert.Equal(t, "node1", o.nodeName)
		assert.NotContains(t, o.said(logrus.InfoLevel)+o.said(logrus.WarnLevel), "--", "flags without meaning")
		require.NotNil(t, pod.Spec.TerminationGracePeriodSeconds)
		assert.Greater(t, time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second, o.drainTimeout)
		assert.Equal(t, "/run", filepath.Dir(o.adminSocket), "the only place the container may write to")

		for path, probe := range map[string]*v1.Probe{"/livez": c.LivenessProbe, "/healthz": c.ReadinessProbe} {
			require.NotNil(t, probe, path)
			assert.Equal(t, path, probe.HTTPGet.Path)
			port := probe.HTTPGet.Port.IntValue()
			for _, named := range c.Ports {
				if named.Name == probe.HTTPGet.Port.StrVal {
					port = int(named.ContainerPort)
				}
			}
			assert.EqualValues(t, o.healthz.Port(), port, path)
		}
		dead := time.Duration(c.LivenessProbe.PeriodSeconds*c.LivenessProbe.FailureThreshold) * time.Second
		assert.GreaterOrEqual(t, dead, time.Minute, "a restart costs live connections: not for a hiccup")

		privileges := c.SecurityContext
		assert.Nil(t, privileges.Privileged)
		assert.False(t, *privileges.AllowPrivilegeEscalation)
		assert.True(t, *privileges.ReadOnlyRootFilesystem)
		assert.Equal(t, []v1.Capability{"ALL"}, privileges.Capabilities.Drop)
		assert.Equal(t, []v1.Capability{"NET_ADMIN", "NET_RAW"}, privileges.Capabilities.Add)
	}
}

func TestTrialStandsBesideKubeProxy(t *testing.T) {
	t.Parallel()
	trial := mustParse(t, clusterObjects(t, "trial.yaml")[0].Spec.Template.Spec.Containers[0].Args...)
	usual := mustParse(t, "--kubeconfig=x")
	assert.Equal(t, "redial", trial.serviceProxyName)
	assert.NotEqual(t, usual.healthz.Port(), trial.healthz.Port())
	assert.NotEqual(t, usual.metrics.Port(), trial.metrics.Port())
}

// The unit's command line, with the variables that distributions' units for kube-proxy set.
func TestClusterSystemdUnit(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(examplesDir, "cluster", "redial.service"))
	require.NoError(t, err)
	var line string
	for l := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(l, "ExecStart="); ok {
			line = rest
		}
	}
	line = strings.NewReplacer(
		"$KUBE_LOGTOSTDERR", "--logtostderr=true", "$KUBE_LOG_LEVEL", "--v=0",
		"$KUBE_MASTER", "--master=http://198.18.0.2:8080", "$KUBE_PROXY_ARGS", "--proxy-mode=userspace",
	).Replace(line)
	o := mustParse(t, strings.Fields(line)[1:]...)
	assert.Equal(t, "http://198.18.0.2:8080", o.master)
	require.NoError(t, o.checkSource())
	stop, err := time.ParseDuration(strings.TrimSpace(strings.Split(strings.Split(string(content), "TimeoutStopSec=")[1], "\n")[0]))
	require.NoError(t, err)
	assert.Greater(t, stop, o.drainTimeout)
}
