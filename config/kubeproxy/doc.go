// Package kubeproxy reads and writes kube-proxy's configuration file, KubeProxyConfiguration of
// kubeproxy.config.k8s.io/v1alpha1, so that redial can be started with the file that a cluster already has.
//
// Every field that means something is the twin of a flag of the same program, so a file comes down to a list of flags and
// their values; what a flag means, and which value is wrong, is up to whoever has the flags:
//
//	c, warnings, err := kubeproxy.Decode(content)
//	for _, s := range c.Settings() {
//		err := flags.Set(s.Flag, s.Value)
//	}
//
// Files of all versions since 1.8 are understood: fields that kube-proxy has dropped (udpIdleTimeout, resourceContainer),
// the older group componentconfig, feature gates as one string. A field that nobody knows is a warning and not an error,
// as in kube-proxy: a file for the next version must not stop the node's Services. A value of the wrong type is an error.
//
// [Watch] tells when the file has changed. Values are not safe for concurrent use while they are being changed; the
// functions are.
package kubeproxy
