package config_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/config"
)

func Example() {
	t := config.NewTracker(config.Options{})
	t.SetService(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP:   "10.96.0.10",
			ExternalIPs: []string{"fd00::1"},
			Ports:       []v1.ServicePort{{Port: 80}},
		},
	})
	port, notReady := int32(8080), false
	t.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"127.0.0.1"}},
			{Addresses: []string{"127.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &notReady}},
		},
	})
	t.ServicesDelivered()
	t.EndpointsDelivered()

	<-t.Changed()
	for name, svc := range t.Take() {
		for _, p := range svc.Ports {
			fmt.Println(p.Name, p.ClusterIPs, config.Usable(p.Endpoints, config.IPv4, config.ClusterPool, config.Node{}))
		}
		for _, p := range svc.Problems {
			fmt.Println(name, p.Message)
		}
	}
	// Output:
	// default/web/TCP [10.96.0.10] [127.0.0.1:8080]
	// default/web spec.externalIPs[0] fd00::1 is IPv6 but the Service is IPv4 only: remove it or add IPv6 to spec.ipFamilies
}
