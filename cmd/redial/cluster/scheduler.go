package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// schedule binds a Pod to the node that has the fewest of the same owner, among those its node selector admits. A Pod
// that no node admits stays pending.
func (c *Cluster) schedule(pod *v1.Pod) {
	owner := string(pod.UID)
	if len(pod.OwnerReferences) > 0 {
		owner = string(pod.OwnerReferences[0].UID)
	}
	var best *Node
	fewest := 0
	for _, n := range c.Nodes() {
		wanted := pod.Spec.NodeSelector[v1.LabelHostname]
		if wanted != "" && wanted != n.Name || wanted == "" && n.reserved {
			continue
		}
		n.mu.Lock()
		count := n.assigned[owner]
		n.mu.Unlock()
		if best == nil || count < fewest {
			best, fewest = n, count
		}
	}
	if best == nil {
		return
	}
	best.mu.Lock()
	best.assigned[owner]++
	best.mu.Unlock()
	c.running.Go(func() {
		persist(c.ctx, func() error {
			return c.Client.CoreV1().Pods(pod.Namespace).Bind(c.ctx, &v1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
				Target:     v1.ObjectReference{Kind: "Node", Name: best.Name},
			}, metav1.CreateOptions{})
		})
	})
}
