package main

import (
	"fmt"

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
			if err := rules.Cleanup(cmd.Context()); err != nil {
				return fmt.Errorf("removing the rules: %w", err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "no rules of redial are left")
			return nil
		},
	}
	opts.addIPTablesFlags(cmd.Flags())
	return cmd
}
