package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray/internal/doctor"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/ray"
)

// newDoctor checks a machine or a cluster with the flags that a server is to have.
func newDoctor() *cobra.Command {
	cfg := config.Default()
	var asJSON, noStart, inActor bool
	c := &cobra.Command{
		Use:   "doctor [MODEL] [flags of serve]",
		Short: "Check this machine, or a cluster, for what a server with the same flags needs",
		Long: `doctor looks at this machine, and with --ray-address or --nnodes at every node: their versions, clocks,
addresses, devices, memory and disks, the model's bytes, and connections between each two of them in both directions.
Then it starts the workers that the flags ask for, and has them answer one token: what stands in the way is found as a
server would find it. A line for each check: what there is, what it means, and what to do. The exit code is 1 when a
check fails.

  eagleray doctor
  eagleray doctor ./Qwen3-8B -tp 4 --distributed-executor-backend ray --ray-address 10.0.0.1:6379
  eagleray doctor ./Qwen3-8B -tp 2 --nnodes 2 --master-addr 10.0.0.1 --cluster-token-file token    # and on the other:
  eagleray doctor ./Qwen3-8B -tp 2 --nnodes 2 --master-addr 10.0.0.1 --cluster-token-file token --headless --node-rank 1
  eagleray doctor --json | jq '.[] | select(.state != "ok")'`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if inActor {
				return doctor.InActor(c.Context(), os.Stdin)
			}
			cli.UseModel(&cfg, args)
			if err := cfg.Validate(); err != nil {
				return err
			}
			if cfg.Parallel.Nodes.Headless {
				return examined(c.Context(), cfg, !noStart)
			}
			out := cli.PrintTo(os.Stdout)
			if err := examine(c.Context(), cfg, !noStart, asJSON, out); err != nil {
				return err
			}
			return out.Err
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print the results as JSON")
	f.BoolVar(&noStart, "no-start", false, "look at this machine only, and start no workers")
	f.BoolVar(&inActor, strings.TrimPrefix(doctor.ActorFlag, "--"), false,
		"serve the doctor of another machine (used by eagleray itself)")
	f.Lookup(strings.TrimPrefix(doctor.ActorFlag, "--")).Hidden = true
	cli.ModelFlag(f, &cfg)
	cfg.EngineFlags(f)
	cfg.ServerFlags(f)
	cli.ConfigFlag(c)
	return c
}

// groupTimeout bounds the start of the workers, and their token.
const groupTimeout = 10 * time.Minute

// surveyTimeout bounds the look at the nodes.
const surveyTimeout = 20 * time.Minute

func examine(ctx context.Context, cfg config.Config, start, asJSON bool, to io.Writer) error {
	cache, err := hub.CacheDir(cfg.Model.DownloadDir)
	if err != nil {
		return err
	}
	m := doctor.ThisMachine()
	lines := to
	if asJSON {
		lines = nil
	}
	results := doctor.Run(ctx, m.Checks(&cfg, cache), lines)
	show := func(more []doctor.Result) {
		results = append(results, more...)
		for _, r := range more {
			if lines != nil {
				fmt.Fprintln(lines, r)
			}
		}
	}
	nodes := surveyNodes(ctx, &cfg, start)
	show(nodes)
	switch failed, _ := doctor.Failed(nodes); {
	case start && failed > 0:
		show([]doctor.Result{doctor.NotTried()})
	case start:
		show(startGroup(ctx, cfg))
	}
	if asJSON {
		out := json.NewEncoder(to)
		out.SetIndent("", "  ")
		if err := out.Encode(results); err != nil {
			return err
		}
	}
	failed, warned := doctor.Failed(results)
	if !asJSON {
		fmt.Fprintf(to, "%d checks, %d failed, %d warnings\n", len(results), failed, warned)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(results))
	}
	return nil
}

// doctorLog is what a check that waits for others says meanwhile.
func doctorLog(least slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: least}))
}

// surveyNodes looks at the nodes of a cluster; there are none without one.
func surveyNodes(ctx context.Context, cfg *config.Config, start bool) []doctor.Result {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	var found *doctor.Found
	var err error
	switch p := &cfg.Parallel; {
	case p.Nodes.Count > 1:
		found, err = doctor.OverNodes(ctx, cfg, version(), start, doctorLog(slog.LevelInfo))
	case p.Backend == "ray":
		found, err = doctor.OverRay(ctx, cfg, version(), doctorLog(slog.LevelWarn), ray.Start)
	default:
		return nil
	}
	if err != nil {
		return []doctor.Result{doctor.NotSurveyed(err)}
	}
	return found.Results(cfg)
}

// examined lets node 0 examine this node, and then runs its ranks.
func examined(ctx context.Context, cfg config.Config, start bool) error {
	log := doctorLog(slog.LevelInfo)
	group, err := doctor.Headless(ctx, &cfg, version(), log)
	if err != nil {
		return err
	}
	if group {
		return groups.RunNode(ctx, groups.NodeOptions{Config: cfg, Log: log, Version: version()})
	}
	if start {
		return errors.New("no ranks were started: node 0 says what is wrong")
	}
	return nil
}

// startGroup starts the workers as a server would, and has them compute a token.
func startGroup(ctx context.Context, cfg config.Config) []doctor.Result {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	cfg.Recovery.OnFailure = "exit"
	shown := newProgress(os.Stderr)
	started := time.Now()
	log := doctorLog(slog.LevelWarn)
	e, _, err := engine.Open(ctx, engine.Options{Config: cfg, Events: shown.listen, Log: log,
		Version: version()})
	shown.end()
	if err != nil {
		return []doctor.Result{doctor.NotStarted(err)}
	}
	facts, err := oneToken(ctx, e)
	took := time.Since(started)
	err = errors.Join(err, e.Stop(context.WithoutCancel(ctx)))
	if err != nil {
		return []doctor.Result{doctor.NotStarted(err)}
	}
	return doctor.Ranks(facts, took)
}

// oneToken has an engine compute a token, and asks its ranks what they are.
func oneToken(ctx context.Context, e *engine.Engine) ([]doctor.RankFacts, error) {
	s, err := e.Submit(ctx, engine.OneToken(e.Info().Pooling))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if _, err := s.Next(ctx); err != nil {
		return nil, err
	}
	probes, err := e.Probe(ctx)
	if err != nil {
		return nil, err
	}
	var facts []doctor.RankFacts
	for _, p := range probes {
		facts = append(facts, doctor.RankFacts{Rank: p.Rank, Node: p.Node, Skew: p.Skew,
			Trip: p.Trip,
			ISA:  p.ISA, Niceness: p.Niceness})
	}
	return facts, nil
}
