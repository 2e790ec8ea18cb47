package main

import (
	"github.com/spf13/pflag"
)

// sourceOptions say where the Services come from, and which ones are served.
type sourceOptions struct {
	manifests string // a directory; empty: the Kubernetes API

	kubeconfig     string // path; empty with an empty master: the Pod's service account
	master         string // URL of the API server, which wins over the one in kubeconfig
	apiContentType string
	apiQPS         float32
	apiBurst       int32

	endpointSource     string // endpointSourceAuto and so on
	serviceProxyName   string // value of the label service.kubernetes.io/service-proxy-name; empty: Services without it
	disableExternalIPs bool   // by its own flag or by the feature gate
}

const (
	endpointSourceAuto      = "auto"
	endpointSourceSlices    = "endpointslices"
	endpointSourceEndpoints = "endpoints"
)

func defaultSourceOptions() sourceOptions {
	return sourceOptions{
		apiContentType: "application/vnd.kubernetes.protobuf",
		apiQPS:         5,
		apiBurst:       10,
		endpointSource: endpointSourceAuto,
	}
}

func (o *sourceOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", o.manifests, "directory of Service, EndpointSlice and Endpoints manifests (.yaml, .yml, .json), followed as it changes, instead of a cluster")
	f.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "file that says how to reach the Kubernetes API; without it and without --master, the Pod's service account is used")
	f.StringVar(&o.master, "master", o.master, "URL of the Kubernetes API server, instead of the one in --kubeconfig")
	f.Float32Var(&o.apiQPS, "kube-api-qps", o.apiQPS, "requests a second to the Kubernetes API, in the long run")
	f.Int32Var(&o.apiBurst, "kube-api-burst", o.apiBurst, "requests to the Kubernetes API at once")
	f.StringVar(&o.apiContentType, "kube-api-content-type", o.apiContentType, "encoding of requests to the Kubernetes API")
	f.StringVar(&o.endpointSource, "endpoint-source", o.endpointSource, "where backends are read: endpointslices, endpoints (for API servers older than 1.21), or auto (slices where the server has them)")
	f.StringVar(&o.serviceProxyName, "service-proxy-name", o.serviceProxyName, "serve the Services with this value of the label service.kubernetes.io/service-proxy-name, instead of those without the label")
	f.BoolVar(&o.disableExternalIPs, "disable-external-ips", o.disableExternalIPs, "ignore spec.externalIPs, with which who may create Services can take over any address (CVE-2020-8554)")
}

func (o *options) validateSource(c *complaints) {
	c.oneOf("endpoint-source", o.endpointSource, endpointSourceAuto, endpointSourceSlices, endpointSourceEndpoints)
	if o.apiBurst < 0 {
		c.add("--kube-api-burst %d: must not be negative", o.apiBurst)
	}
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		c.add("--manifests and --kubeconfig or --master: two sources of Services, give one")
	}
}
