package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func rootCommand() *cobra.Command {
	opts := defaultOptions()
	cmd := &cobra.Command{
		Use:   "redial --manifests DIR",
		Short: "A userspace L4 proxy for Kubernetes Services that retries failed dials",
		Long: `redial makes Services work on this node: traffic to a ClusterIP, NodePort, externalIP or
load balancer IP is redirected to a local port, and each connection is relayed to one of the
Service's backends. When a backend does not answer, the same connection goes to another one.

The Services, EndpointSlices and Endpoints are read from the YAML and JSON files below DIR,
and followed as the files change.`,
		Example: `  redial --manifests /etc/redial/manifests
  redial --manifests . --interception none   # without privileges: listen on the proxy ports only`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.manifests == "" {
				return errors.New("no source of Services: give --manifests DIR (see redial --help)")
			}
			if err := opts.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), opts)
		},
	}
	opts.addFlags(cmd.Flags())
	cmd.AddCommand(statusCommand(), cleanupCommand(), demoCommand(), versionCommand())
	return cmd
}
