package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"redial/proxy/intercept/lab"
)

// startPatience is what a part of the control plane is granted to become ready: some seconds are usual.
const startPatience = 2 * time.Minute

// controlPlane is etcd, an API server and the controllers, all on one host.
type controlPlane struct {
	host     *lab.Host
	dir      string // of data, logs and credentials
	binaries string // folder of kube-apiserver and kube-controller-manager
	creds    credentials
	client   *kubernetes.Clientset

	etcd, api, controllers *process
}

// start starts the control plane and returns when it is ready. Stop it also after an error.
func (p *controlPlane) start(ctx context.Context) error {
	var err error
	if p.creds, err = newCredentials(p.dir, apiAddr); err != nil {
		return err
	}
	if p.client, err = kubernetes.NewForConfig(p.creds.rest(admin)); err != nil {
		return fmt.Errorf("making the API client: %w", err)
	}
	if err := p.startEtcd(); err != nil {
		return err
	}
	if err := p.startAPI(ctx); err != nil {
		return err
	}
	return p.startControllers()
}

func (p *controlPlane) startEtcd() (err error) {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	p.etcd, err = startProcess(p.host, p.dir, "etcd", "etcd",
		"--data-dir", filepath.Join(p.dir, "etcd"),
		"--unsafe-no-fsync", // nothing here outlives the machine
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err != nil {
		return fmt.Errorf("%w (it is in Debian's package etcd-server)", err)
	}
	return p.etcd.await(startPatience, func() error {
		answer, err := http.Get(client + "/health")
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
}

// startAPI starts an API server on what etcd holds, and returns when it is ready.
func (p *controlPlane) startAPI(ctx context.Context) (err error) {
	p.api, err = startProcess(p.host, p.dir, "kube-apiserver", filepath.Join(p.binaries, "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address="+apiAddr, "--advertise-address="+apiAddr, "--secure-port="+apiPort,
		"--tls-cert-file="+p.creds.path("apiserver.crt"), "--tls-private-key-file="+p.creds.path("apiserver.key"),
		"--cert-dir="+p.dir,
		"--token-auth-file="+p.creds.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+p.creds.path("accounts.key"),
		"--service-account-signing-key-file="+p.creds.path("accounts.key"),
		"--service-cluster-ip-range="+serviceCIDRs,
		// Pods here have no use for an account, and the controller that would make them does not run.
		"--disable-admission-plugins=ServiceAccount",
		"--enable-priority-and-fairness=false")
	if err != nil {
		return err
	}
	return p.api.await(startPatience, func() error {
		return p.client.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(5 * time.Second).Do(ctx).Error()
	})
}

func (p *controlPlane) startControllers() error {
	config, err := p.creds.kubeconfig(admin)
	if err != nil {
		return err
	}
	p.controllers, err = startProcess(p.host, p.dir, "kube-controller-manager", filepath.Join(p.binaries, "kube-controller-manager"),
		"--kubeconfig="+config, "--leader-elect=false", "--secure-port=0",
		"--controllers=endpoints-controller,endpointslice-controller,endpointslice-mirroring-controller,deployment-controller,replicaset-controller",
		"--kube-api-qps=500", "--kube-api-burst=1000")
	return err
}

// failed is the error of a part that has ended though nobody stopped it.
func (p *controlPlane) failed() error {
	var errs []error
	for _, part := range []*process{p.etcd, p.api, p.controllers} {
		if part != nil && part.ended() {
			errs = append(errs, fmt.Errorf("%s has ended: %v\n%s", part.name, part.err, part.tail(30)))
		}
	}
	return errors.Join(errs...)
}

// stop ends the parts, the API server before etcd: without etcd it does not heed SIGTERM for minutes.
func (p *controlPlane) stop() {
	for _, part := range []*process{p.controllers, p.api, p.etcd} {
		if part != nil {
			part.stop(5 * time.Second)
		}
	}
}
