package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"redial/iptables"
	"redial/proxy/intercept/local"
)

func cleanupCommand() *cobra.Command {
	opts := defaultOptions()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove every rule and route that redial has written, nft and legacy, IPv4 and IPv6",
		Long: `Removes the chains whose names begin with REDIAL- and the jumps to them, the routes of the table
local that have redial's protocol number, and nothing else. redial leaves them in place when it
stops, so that a restart disturbs nobody; this is for when it is not to come back. Running it
again is no error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return err
			}
			return cleanup(cmd.Context(), cmd.OutOrStdout(), opts)
		},
	}
	opts.addIPTablesFlags(cmd.Flags())
	return cmd
}

func cleanup(ctx context.Context, out io.Writer, opts *options) error {
	unlock, err := lockSteering()
	if err != nil {
		return err
	}
	defer unlock()
	log, err := opts.logger()
	if err != nil {
		return err
	}
	log.Logger.SetLevel(logrus.WarnLevel)
	_, routesErr := local.Cleanup()
	if routesErr != nil {
		routesErr = fmt.Errorf("removing the routes: %w", routesErr)
	}
	rules, err := opts.rules(log)
	switch {
	case err == nil:
		err = rules.Cleanup(ctx)
	case !iptables.Passing(err) && mayWriteRoutes(log):
		// No program or no table, and not for want of privileges: then no process of ours has had them either.
		if routesErr == nil {
			fmt.Fprintf(out, "iptables does not work here, so there can be no rules: %s\n", oneLine(err.Error()))
		}
		err = nil
	default:
		return errors.Join(err, routesErr)
	}
	if err != nil {
		err = fmt.Errorf("removing the rules: %w", err)
	}
	if err = errors.Join(err, routesErr); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "no rules and no routes of redial are left")
	return err
}

// mayWriteRoutes reports whether this process has the privileges that iptables takes as well.
func mayWriteRoutes(log *logrus.Entry) bool {
	routes, err := local.New(local.Config{Log: log})
	if err != nil {
		return false
	}
	routes.Close()
	return true
}
