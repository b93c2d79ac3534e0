package main

import (
	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
)

// newWorker is the verb of worker processes. Signals are the driver's business: a terminal's Ctrl-C
// goes to the driver, which ends its workers when requests are done.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use:                launch.Verb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return invited.Main(args, nil)
		},
	}
}
