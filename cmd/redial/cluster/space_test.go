package cluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"redial/proxy/intercept/lab"
)

// The ports that pods serve, over TCP and over UDP.
const (
	podTCP = 8080
	podUDP = 8081
)

// space is a test's own Kubernetes namespace.
type space struct {
	t    *testing.T
	name string
	api  *kubernetes.Clientset
}

// newSpace makes a namespace named after the test. What is in it is shown if the test fails, with the logs of everything.
func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Getenv(binariesEnv) == "" {
		t.Skip("needs a control plane: make test-cluster")
	}
	name := strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-"), "-")
	s := &space{t: t, name: name[:min(len(name), 60)], api: shared.Client}
	_, err := s.api.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.dump())
		}
		s.clean()
	})
	return s
}

// parallel is newSpace for a test that runs beside others.
func parallel(t *testing.T) *space {
	t.Helper()
	t.Parallel()
	return newSpace(t)
}

// clean ends the test's pods and Services, so that they do not cost the other tests anything. The order is that of
// ownership: no garbage collector runs.
func (s *space) clean() {
	now := int64(0)
	all, forced := metav1.ListOptions{}, metav1.DeleteOptions{GracePeriodSeconds: &now}
	ctx := context.Background()
	_ = s.api.AppsV1().Deployments(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
	_ = s.api.AppsV1().ReplicaSets(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
	_ = s.api.CoreV1().Pods(s.name).DeleteCollection(ctx, forced, all)
	services, err := s.api.CoreV1().Services(s.name).List(ctx, all)
	if err != nil {
		return
	}
	for _, svc := range services.Items {
		_ = s.api.CoreV1().Services(s.name).Delete(ctx, svc.Name, metav1.DeleteOptions{})
	}
}

// dump shows the objects of the namespace, and the logs.
func (s *space) dump() string {
	var b strings.Builder
	ctx := context.Background()
	show := func(kind string, items any, err error) {
		text, _ := yaml.Marshal(items)
		fmt.Fprintf(&b, "--- %s (error: %v)\n%s", kind, err, text)
	}
	services, err := s.api.CoreV1().Services(s.name).List(ctx, metav1.ListOptions{})
	for i := range services.Items {
		services.Items[i].ManagedFields = nil
	}
	show("Services", services.Items, err)
	endpoints, err := s.api.DiscoveryV1().EndpointSlices(s.name).List(ctx, metav1.ListOptions{})
	for i := range endpoints.Items {
		endpoints.Items[i].ManagedFields = nil
	}
	show("EndpointSlices", endpoints.Items, err)
	pods, err := s.api.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
	fmt.Fprintf(&b, "--- Pods (error: %v)\n", err)
	for _, p := range pods.Items {
		fmt.Fprintln(&b, p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Message, p.Status.PodIPs, "ready:", isReady(&p), "deleted:", p.DeletionTimestamp)
	}
	return b.String() + shared.Logs(60)
}

// template is a pod that serves podTCP and podUDP and is selected by app=name.
func template(name string, change ...func(*v1.PodTemplateSpec)) v1.PodTemplateSpec {
	grace := int64(30)
	t := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{{
				Name: "pod", Image: "pod",
				Ports: []v1.ContainerPort{
					{Name: "tcp", ContainerPort: podTCP},
					{Name: "udp", ContainerPort: podUDP, Protocol: v1.ProtocolUDP},
				},
			}},
		},
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

func onNode(n *Node) func(*v1.PodTemplateSpec) {
	return func(t *v1.PodTemplateSpec) { t.Spec.NodeSelector = map[string]string{v1.LabelHostname: n.Name} }
}

func annotated(key string) func(*v1.PodTemplateSpec) {
	return func(t *v1.PodTemplateSpec) { t.Annotations[key] = "true" }
}

// onHostNetwork has the pod serve the ports on its node's addresses.
func onHostNetwork(tcp, udp int32) func(*v1.PodTemplateSpec) {
	return func(t *v1.PodTemplateSpec) {
		t.Spec.HostNetwork = true
		ports := t.Spec.Containers[0].Ports
		ports[0].ContainerPort, ports[1].ContainerPort = tcp, udp
	}
}

// pod makes a pod and waits until it runs, and is ready unless it is never to be.
func (s *space) pod(name string, change ...func(*v1.PodTemplateSpec)) *v1.Pod {
	s.t.Helper()
	t := template(name, change...)
	pod := &v1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	pod.Name = name
	_, err := s.api.CoreV1().Pods(s.name).Create(s.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(s.t, err)
	eventually(s.t, "pod "+name+" runs", func() (err error) {
		pod, err = s.api.CoreV1().Pods(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil && (pod.Status.Phase != v1.PodRunning || isReady(pod) == (t.Annotations[NotReady] == "true")) {
			err = fmt.Errorf("its status is %+v", pod.Status)
		}
		return err
	})
	return pod
}

func isReady(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// deploy makes a Deployment and waits until its pods are ready.
func (s *space) deploy(name string, replicas int32, change ...func(*v1.PodTemplateSpec)) {
	s.t.Helper()
	_, err := s.api.AppsV1().Deployments(s.name).Create(s.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: template(name, change...),
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	s.awaitRollout(name)
}

// scale changes the number of replicas and waits until there are so many.
func (s *space) scale(name string, replicas int32) {
	s.t.Helper()
	s.patch("deployment", name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
	s.awaitRollout(name)
}

// awaitRollout waits until a Deployment's pods are those it wants, all ready and no others.
func (s *space) awaitRollout(name string) {
	s.t.Helper()
	eventually(s.t, "deployment "+name+" is rolled out", func() error {
		d, err := s.api.AppsV1().Deployments(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want, is := *d.Spec.Replicas, d.Status
		if is.ObservedGeneration != d.Generation || is.Replicas != want || is.UpdatedReplicas != want || is.ReadyReplicas != want {
			return fmt.Errorf("its status is %+v", is)
		}
		if pods := s.pods(name); len(pods) != int(want) {
			return fmt.Errorf("it has %d pods", len(pods))
		}
		return nil
	})
}

// pods returns the pods with app=name that are not terminating, by name.
func (s *space) pods(name string) []v1.Pod {
	s.t.Helper()
	list, err := s.api.CoreV1().Pods(s.name).List(s.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	require.NoError(s.t, err)
	return slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil })
}

// deletePod begins a pod's deletion.
func (s *space) deletePod(name string) {
	s.t.Helper()
	require.NoError(s.t, s.api.CoreV1().Pods(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
}

// annotate sets ("true") or unsets an annotation of a pod.
func (s *space) annotate(pod, key string, set bool) {
	s.t.Helper()
	value := "null"
	if set {
		value = `"true"`
	}
	s.patch("pod", pod, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value))
}

// patch changes an object as a JSON merge patch says.
func (s *space) patch(kind, name, patch string) {
	s.t.Helper()
	var err error
	ctx, how, body, opts := s.t.Context(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}
	switch kind {
	case "pod":
		_, err = s.api.CoreV1().Pods(s.name).Patch(ctx, name, how, body, opts)
	case "deployment":
		_, err = s.api.AppsV1().Deployments(s.name).Patch(ctx, name, how, body, opts)
	case "service":
		_, err = s.api.CoreV1().Services(s.name).Patch(ctx, name, how, body, opts)
	case "service status":
		_, err = s.api.CoreV1().Services(s.name).Patch(ctx, name, how, body, opts, "status")
	case "endpointslice":
		_, err = s.api.DiscoveryV1().EndpointSlices(s.name).Patch(ctx, name, how, body, opts)
	default:
		err = fmt.Errorf("no kind %q here", kind)
	}
	require.NoError(s.t, err, "%s %s: %s", kind, name, patch)
}

// host is the network namespace of a pod.
func (s *space) host(pod string) *lab.Host {
	s.t.Helper()
	p, err := s.api.CoreV1().Pods(s.name).Get(s.t.Context(), pod, metav1.GetOptions{})
	require.NoError(s.t, err)
	h := shared.PodHost(p.UID)
	require.NotNil(s.t, h, "pod %s runs on no node here", pod)
	return h
}

func (s *space) hostsOf(pods []v1.Pod) []*lab.Host {
	s.t.Helper()
	var all []*lab.Host
	for _, p := range pods {
		all = append(all, s.host(p.Name))
	}
	return all
}
