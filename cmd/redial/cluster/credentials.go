package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The users of the API, and their tokens. What system:kube-proxy may do is the API server's own policy: it binds that user
// to the role system:node-proxier.
const (
	admin     = "admin"
	proxyUser = "system:kube-proxy"
)

// credentials are the files by which the parts of the control plane know each other.
type credentials struct {
	dir string
	ca  []byte
}

func (c credentials) path(name string) string { return filepath.Join(c.dir, name) }

// newCredentials writes the API server's certificate and the users' tokens to dir.
func newCredentials(dir, apiAddr string) (credentials, error) {
	c := credentials{dir: dir}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(apiAddr, []net.IP{net.ParseIP(apiAddr)}, nil)
	if err != nil {
		return c, fmt.Errorf("making the API server's certificate: %w", err)
	}
	accounts, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return c, fmt.Errorf("making the service accounts' key: %w", err)
	}
	c.ca = certPEM
	tokens := fmt.Sprintf("%s-token,%s,1,system:masters\n%s-token,%s,2\n", admin, admin, proxyUser, proxyUser)
	for name, content := range map[string][]byte{
		"apiserver.crt": certPEM, "apiserver.key": keyPEM, "accounts.key": accounts, "tokens.csv": []byte(tokens),
	} {
		if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

// rest is how to talk to the API as user, without a limit on the rate.
func (c credentials) rest(user string) *rest.Config {
	return &rest.Config{
		Host:            "https://" + apiAddress,
		BearerToken:     user + "-token",
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		QPS:             -1,
	}
}

// kubeconfig writes a kubeconfig for user and returns its path.
func (c credentials) kubeconfig(user string) (string, error) {
	path := c.path(user + ".kubeconfig")
	// To a name of its own first: another node's proxy may be reading the file.
	fresh, err := os.CreateTemp(c.path(""), "kubeconfig")
	if err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	fresh.Close()
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: "https://" + apiAddress, CertificateAuthorityData: c.ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {Token: user + "-token"}},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: user}},
		CurrentContext: "lab",
	}, fresh.Name())
	if err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}
