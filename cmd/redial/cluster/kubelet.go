package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"redial/proxy/intercept/lab"
)

// The played kubelet's annotations on a Pod.
const (
	// NotReady ("true") keeps the pod from being ready, as a failing readiness probe does. It may change at any time.
	NotReady = "cluster.redial/not-ready"
	// Lingers ("true") lets the pod's program ignore SIGTERM and work on until the grace period ends.
	Lingers = "cluster.redial/lingers"
)

// kubelet hands each Pod object to a worker of its own, and those without a node to the scheduler.
type kubelet struct {
	c       *Cluster
	mu      sync.Mutex
	workers map[types.UID]*podWorker
	hosts   map[types.UID]*lab.Host
}

// startKubelet starts playing the kubelets of all nodes, and the scheduler. Cluster.ctx ends them.
func (c *Cluster) startKubelet() error {
	k := &kubelet{c: c, workers: map[types.UID]*podWorker{}, hosts: map[types.UID]*lab.Host{}}
	c.kubelet = k
	c.pods = informers.NewSharedInformerFactory(c.Client, 0)
	pods := c.pods.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.see(o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { k.see(o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			k.forget(o.(*v1.Pod).UID)
		},
	}); err != nil {
		return fmt.Errorf("following the pods: %w", err)
	}
	c.pods.Start(c.ctx.Done())
	if !cache.WaitForCacheSync(c.ctx.Done(), pods.HasSynced) {
		return fmt.Errorf("following the pods: %w", c.ctx.Err())
	}
	return nil
}

// see takes notice of a Pod's present state. The informer calls it for one Pod after the other.
func (k *kubelet) see(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		if pod.DeletionTimestamp == nil {
			k.c.schedule(pod)
		}
		return
	}
	node := k.c.node(pod.Spec.NodeName)
	if node == nil {
		return // of a kubelet that is not played here
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.workers[pod.UID]
	if w == nil {
		w = newPodWorker(node, func(h *lab.Host) { k.attached(pod.UID, h) })
		k.workers[pod.UID] = w
		k.c.running.Go(func() { w.run(k.c.ctx) })
	}
	w.see(pod)
}

// forget ends the worker of a Pod that is gone, however it went.
func (k *kubelet) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[uid]; w != nil {
		delete(k.workers, uid)
		delete(k.hosts, uid)
		close(w.gone)
	}
}

// attached takes note of where a Pod runs.
func (k *kubelet) attached(uid types.UID, host *lab.Host) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hosts[uid] = host
}

// PodHost returns the host that a Pod runs on: its own, or the node's if it is on the host network. It is nil before the
// Pod runs and after it is gone.
func (c *Cluster) PodHost(uid types.UID) *lab.Host {
	c.kubelet.mu.Lock()
	defer c.kubelet.mu.Unlock()
	return c.kubelet.hosts[uid]
}

// persist calls an API request until it succeeds, the object is gone, or ctx ends: the API server may be away.
func persist(ctx context.Context, request func() error) {
	for {
		err := request()
		if err == nil || isFinal(err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
