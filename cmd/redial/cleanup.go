package main

import (
	"context"
	"fmt"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

func cleanupCommand() *cobra.Command {
	opts := defaultOptions()
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove every rule that redial has written, nft and legacy, IPv4 and IPv6",
		Long: `Removes the chains whose names begin with REDIAL- and the jumps to them, and nothing else.
redial leaves its rules in place when it stops, so that a restart disturbs nobody; this is for
when it is not to come back. Running it again is no error.`,
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
	rules, err := opts.rules(log)
	if err != nil {
		return err
	}
	if err := rules.Cleanup(ctx); err != nil {
		return fmt.Errorf("removing the rules: %w", err)
	}
	_, err = fmt.Fprintln(out, "no rules of redial are left")
	return err
}
