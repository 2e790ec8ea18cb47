package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	serviceRange  = "198.18.128.0/17" // VIPs, one for each Service
	endpointRange = "198.19.0.0/16"   // all of it answers
	scalePort     = 80                // of VIPs
	endpointCount = 4                 // of each Service
	nodeName      = "bench"
)

// mostServices is what serviceRange holds below 198.18.255.0/24, the node's way to the world.
const mostServices = 127 << 8

// vipOf is the address of a Service.
func vipOf(service int) netip.AddrPort {
	return netip.AddrPortFrom(nth(serviceRange, service), scalePort)
}

// endpointsOf are the addresses of a Service's endpoints. Those of one generation and the next have no port in common, so
// that an answer tells which it is from.
func endpointsOf(service, generation int) [endpointCount]netip.AddrPort {
	var out [endpointCount]netip.AddrPort
	for i := range out {
		n := service*endpointCount + i
		out[i] = netip.AddrPortFrom(nth(endpointRange, n&0xffff), uint16(endpointPorts+generation%2*2+n>>16))
	}
	return out
}

// endpointPorts is the first of the four ports that endpoints listen on.
const endpointPorts = 8080

// nth is an address of a range, from 0.
func nth(prefix string, i int) netip.Addr {
	first := netip.MustParsePrefix(prefix).Addr().As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+uint32(i))))
}

// serviceObject is what an API server has of a Service that was applied with kubectl or Helm.
func serviceObject(service int) *v1.Service {
	vip := vipOf(service).Addr().String()
	return &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: objectMeta("Service", service, fmt.Sprintf("service-%d", service), nil),
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: vip, ClusterIPs: []string{vip},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, IPFamilyPolicy: new(v1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: new(v1.ServiceInternalTrafficPolicyCluster), SessionAffinity: v1.ServiceAffinityNone,
			Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("service-%d", service)},
			Ports:    []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: scalePort, TargetPort: intstr.FromString("http")}},
		},
	}
}

// sliceObject is what the endpoint controller makes of its pods.
func sliceObject(service, generation int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: objectMeta("EndpointSlice", service, fmt.Sprintf("service-%d-x7k2p", service), map[string]string{
			discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", service),
			discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
		}),
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: fmt.Sprintf("service-%d", service),
		UID: uid("Service", service), Controller: new(true), BlockOwnerDeletion: new(true)}}
	s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)}
	for i, addr := range endpointsOf(service, generation) {
		n := service*endpointCount + i
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addr.Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", n%500)), Zone: new(fmt.Sprintf("zone-%d", n%3)),
			TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("service-%d-5d9f8c7b6-%05d", service, n), UID: uid("Pod", n)},
		})
		s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(addr.Port()))}}
	}
	return s
}

func nodeObject() *v1.Node {
	n := &v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: uid("Node", 0)}}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: nodeIP}}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = endpointRange, []string{endpointRange}
	return n
}

// objectMeta has what every object carries along and proxies have no use for.
func objectMeta(kind string, service int, name string, labels map[string]string) metav1.ObjectMeta {
	if labels == nil {
		labels = map[string]string{}
	}
	labels["app.kubernetes.io/name"] = fmt.Sprintf("service-%d", service)
	labels["app.kubernetes.io/managed-by"] = "Helm"
	return metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", service%300), Name: name, UID: uid(kind, service), Labels: labels,
		CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000+int64(service), 0)),
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "controller", Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:ports":{},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`)}},
	}
}

func uid(kind string, n int) types.UID {
	return types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", len(kind), n))
}
