package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redial/proxy/intercept/lab"
)

// podWorker plays the kubelet for one Pod, from its namespace to its removal from the API. One goroutine owns it.
type podWorker struct {
	node     *Node
	attached func(*lab.Host)
	news     chan *v1.Pod  // the latest state that was not looked at yet
	gone     chan struct{} // closed when the object is gone

	host   *lab.Host // the pod's namespace, or the node's if it is on the host network
	device string    // the node's end of the veth pair; empty on the host network
	addrs  []netip.Addr
	cmd    *exec.Cmd
	exited chan struct{} // closed when the program has ended
	ready  v1.ConditionStatus
}

// newPodWorker is a worker that calls attached once, with the host that the pod runs on.
func newPodWorker(node *Node, attached func(*lab.Host)) *podWorker {
	return &podWorker{node: node, attached: attached, news: make(chan *v1.Pod, 1), gone: make(chan struct{})}
}

// see replaces the state to look at. Only one goroutine may call it.
func (w *podWorker) see(pod *v1.Pod) {
	select {
	case <-w.news:
	default:
	}
	w.news <- pod
}

// run ends with the Pod, or with ctx.
func (w *podWorker) run(ctx context.Context) {
	defer w.clean()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.gone:
			return
		case pod := <-w.news:
			if pod.DeletionTimestamp != nil {
				w.terminate(ctx, pod)
				return
			}
			w.sync(ctx, pod)
		}
	}
}

// sync makes the pod what its object says.
func (w *podWorker) sync(ctx context.Context, pod *v1.Pod) {
	if pod.Status.Phase == v1.PodFailed {
		w.kill() // evicted; the object stays, as after any eviction
		return
	}
	if w.cmd == nil {
		if err := w.start(pod); err != nil {
			w.report(ctx, pod, map[string]any{"phase": v1.PodFailed, "reason": "CreateError", "message": err.Error()})
			return
		}
	}
	ready := v1.ConditionTrue
	if pod.Annotations[NotReady] == "true" {
		ready = v1.ConditionFalse
	}
	if ready != w.ready {
		w.ready = ready
		w.reportRunning(ctx, pod)
	}
}

// start returns when the program is ready.
func (w *podWorker) start(pod *v1.Pod) error {
	if err := w.attach(pod); err != nil {
		return err
	}
	w.attached(w.host)
	dir, err := w.node.c.podDir()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, pod.Namespace+"."+pod.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	ending := "exit"
	if pod.Annotations[Lingers] == "true" {
		ending = "linger"
	}
	args := []string{pod.Name, ending}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			args = append(args, fmt.Sprintf("%s:%d", strings.ToLower(string(p.Protocol)), p.ContainerPort))
		}
	}
	cmd := exec.Command(w.node.c.config.Pod, args...)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.host.Start(cmd); err != nil {
		return fmt.Errorf("starting the program: %w", err)
	}
	w.cmd, w.exited = cmd, make(chan struct{})
	line, err := bufio.NewReader(out).ReadString('\n')
	go reap(cmd, w.exited)
	if err != nil && err != io.EOF {
		return fmt.Errorf("waiting for the program: %w", err)
	}
	if line != "ready\n" {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the program does not get ready: %s", said)
	}
	return nil
}

// reap ends with the program.
func reap(cmd *exec.Cmd, exited chan struct{}) {
	_ = cmd.Wait()
	close(exited)
}

// attach gives the pod its network.
func (w *podWorker) attach(pod *v1.Pod) (err error) {
	if pod.Spec.HostNetwork {
		w.host, w.addrs = w.node.Host, w.node.Addrs
		return nil
	}
	addrs, i, err := w.node.nextAddrs()
	if err != nil {
		return err
	}
	host, err := lab.NewHost(pod.Name)
	if err != nil {
		return err
	}
	w.host, w.addrs, w.device = host, addrs, fmt.Sprintf("pod%d", i)
	return attachPod(w.node, host, w.device, addrs)
}

// terminate ends the program as its object's deletion asks for, then lets the object go.
func (w *podWorker) terminate(ctx context.Context, pod *v1.Pod) {
	if w.cmd != nil {
		_ = w.cmd.Process.Signal(unix.SIGTERM)
		grace := time.NewTimer(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		defer grace.Stop()
		for waiting := true; waiting; {
			select {
			case <-w.exited:
				waiting = false
			case <-grace.C:
				waiting = false
			case <-w.gone: // deleted by force
				waiting = false
			case <-ctx.Done():
				return
			case pod = <-w.news:
				// Readiness is probed until the end.
				if ready := v1.ConditionStatus("True"); pod.Annotations[NotReady] == "true" && w.ready == ready {
					w.ready = v1.ConditionFalse
					w.reportRunning(ctx, pod)
				}
			}
		}
	}
	w.kill()
	now := int64(0)
	persist(ctx, func() error {
		return w.node.c.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
	})
}

// kill ends the program, if it runs.
func (w *podWorker) kill() {
	if w.cmd != nil {
		_ = w.cmd.Process.Kill()
		<-w.exited
	}
}

// clean takes the pod off the node. Its namespace stays as long as the cluster: who still asks from it, late, must fail, and
// not find another namespace under the same number.
func (w *podWorker) clean() {
	w.kill()
	if w.device != "" {
		_, _ = w.node.Host.Output("ip", "link", "del", w.device)
	}
}

// reportRunning writes what a running pod's status says.
func (w *podWorker) reportRunning(ctx context.Context, pod *v1.Pod) {
	now := metav1.Now()
	ips, hostIPs := []v1.PodIP{}, []v1.HostIP{}
	for _, a := range w.addrs {
		ips = append(ips, v1.PodIP{IP: a.String()})
	}
	for _, a := range w.node.Addrs {
		hostIPs = append(hostIPs, v1.HostIP{IP: a.String()})
	}
	conditions := []v1.PodCondition{}
	for _, c := range []v1.PodConditionType{v1.PodInitialized, v1.PodReadyToStartContainers} {
		conditions = append(conditions, v1.PodCondition{Type: c, Status: v1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
		conditions = append(conditions, v1.PodCondition{Type: c, Status: w.ready, LastTransitionTime: now})
	}
	w.report(ctx, pod, map[string]any{
		"phase": v1.PodRunning, "startTime": now, "conditions": conditions,
		"podIP": w.addrs[0].String(), "podIPs": ips, "hostIP": w.node.Addrs[0].String(), "hostIPs": hostIPs,
	})
}

func (w *podWorker) report(ctx context.Context, pod *v1.Pod, status map[string]any) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		panic(err) // of values made here
	}
	persist(ctx, func() error {
		_, err := w.node.c.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// isFinal says that to ask again would not help: the object is gone, or is another one.
func isFinal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}
