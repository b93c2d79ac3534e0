package main

import (
	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newStepServer is a server whose ranks compute nothing: what eagleray-lab step --http measures,
// and scripts/bench-ray-serve.sh, whose replicas start it as they start serve.
func newStepServer() *cobra.Command {
	cfg := config.Default()
	from := newStarter()
	var null open.Null
	c := &cobra.Command{
		Use:    "step-server",
		Hidden: true,
		Args:   cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			from.configure(&cfg)
			if err := watchParent(); err != nil {
				return err
			}
			return serve(c.Context(), cfg, from, &null)
		},
	}
	cli.ModelFlag(c.Flags(), &cfg)
	c.Flags().StringVar(&null.Text, "step-text", " Time",
		"tokens that the ranks answer with, in turn")
	c.Flags().DurationVar(&null.StepTime, "step-time", 0, "how long a step keeps the ranks busy")
	c.Flags().BoolVar(&null.Elsewhere, "step-elsewhere", false,
		"steps are computed by a device, not by a core of this machine")
	cfg.EngineFlags(c.Flags())
	cfg.ServerFlags(c.Flags())
	if from != nil {
		tellStarter(c, from)
	}
	return c
}
