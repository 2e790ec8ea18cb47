package kube

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ClientConfig says how to reach the API server. The zero value is a pod's own service account.
type ClientConfig struct {
	// Kubeconfig is a file; empty means none.
	Kubeconfig string
	// Master is the API server's URL, in place of the one in Kubeconfig or of the pod's. It should not be a ClusterIP that
	// this very proxy serves, or nothing can start.
	Master string
	// ContentType is what is asked for; empty means protobuf. Where the server has only JSON, that is understood too.
	ContentType string
	// QPS and Burst limit the requests of the client, a watch being one; 0 means 5 and 10.
	QPS   float32
	Burst int
	// UserAgent is what the server's audit log shows; empty means client-go's default.
	UserAgent string
}

// Client returns a client for the API server. It reads files but makes no connection.
func Client(c ClientConfig) (kubernetes.Interface, error) {
	cfg, err := c.rest()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("configuring the client for the API server %s: %w", cfg.Host, err)
	}
	return client, nil
}

func (c ClientConfig) rest() (*rest.Config, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, err
	}
	cfg.ContentType = c.ContentType
	if cfg.ContentType == "" {
		cfg.ContentType = runtime.ContentTypeProtobuf
	}
	// Without a second choice a server, or a proxy before it, that has JSON only would answer 406.
	cfg.AcceptContentTypes = cfg.ContentType
	if cfg.ContentType != runtime.ContentTypeJSON {
		cfg.AcceptContentTypes += "," + runtime.ContentTypeJSON
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = c.QPS, c.Burst, c.UserAgent
	return cfg, nil
}

// load does not use clientcmd.BuildConfigFromFlags: outside a pod that falls back to http://localhost:8080 and waits for
// ever for nobody.
func (c ClientConfig) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("%w: not in a pod, so give --kubeconfig or --master", err)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account: %w: give --kubeconfig, or automount the token", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %q: %w", c.Kubeconfig, err)
	}
	return cfg, nil
}
