package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func rootCommand() *cobra.Command {
	opts := defaultOptions()
	cmd := &cobra.Command{
		Use:   "redial",
		Short: "A userspace L4 proxy for Kubernetes Services that retries failed dials",
		Long: `redial makes Services work on this node: traffic to a ClusterIP, NodePort, externalIP or
load balancer IP is redirected to a local port, and each connection is relayed to one of the
Service's backends. When a backend does not answer, the same connection goes to another one.

It takes kube-proxy's place on a node of a cluster, with the same flags and the same
configuration file (those of the proxy mode userspace). Flags of kube-proxy that have no meaning
here are accepted, not listed below, and named in the log.

Without a cluster, the Services, EndpointSlices and Endpoints are read from the YAML and JSON
files below a directory, and followed as the files change.`,
		Example: `  redial --config /var/lib/kube-proxy/config.conf --hostname-override "$NODE_NAME"
  redial --kubeconfig /etc/kubernetes/kube-proxy.conf --cluster-cidr 198.18.0.0/16
  redial --manifests /etc/redial/manifests
  redial --manifests . --interception none   # without privileges: listen on the proxy ports only`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionString(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.load(); err != nil {
				return err
			}
			if err := opts.validate(); err != nil {
				return err
			}
			switch {
			case opts.writeConfigTo != "":
				return writeConfig(opts)
			case opts.cleanup:
				return cleanup(cmd.Context(), cmd.OutOrStdout(), opts)
			case opts.initOnly:
				log, err := opts.logger()
				if err == nil {
					opts.prepareProcess("/", log)
				}
				return err
			}
			return run(cmd.Context(), opts)
		},
	}
	opts.addFlags(cmd.Flags())
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.AddCommand(statusCommand(), cleanupCommand(), demoCommand(), versionCommand())
	groupUsage(cmd)
	return cmd
}

// groupUsage prints the root command's flags by subject: they are too many for one list.
func groupUsage(root *cobra.Command) {
	standard := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd != root {
			return standard(cmd)
		}
		out := cmd.OutOrStderr()
		fmt.Fprintf(out, "Usage:\n  %s [flags]\n  %[1]s [command]\n\nExamples:\n%s\n\nCommands:\n", cmd.CommandPath(), cmd.Example)
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-12s%s\n", c.Name(), c.Short)
			}
		}
		for _, g := range defaultOptions().groups() {
			flags := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
			flags.SortFlags = false
			g.add(flags)
			fmt.Fprintf(out, "\n%s:\n%s", g.title, flags.FlagUsagesWrapped(120))
		}
		return nil
	})
}

func writeConfig(opts *options) error {
	log, err := opts.logger()
	if err != nil {
		return err
	}
	lost, err := opts.writeConfig()
	if err != nil {
		return err
	}
	log = log.WithField("file", opts.writeConfigTo)
	if len(lost) > 0 {
		log.WithField("flags", lost).Warn("the file has no place for these flags: go on giving them")
	}
	log.Info("configuration written")
	return nil
}
