package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/executor/launch/inproc"
	"github.com/eagleray/eagleray/internal/executor/launch/process"
	"github.com/eagleray/eagleray/internal/executor/launch/rayactor"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/worker"
)

// WorkerVerb is the first argument of the program when it is started as a rank.
const WorkerVerb = process.Verb

// RunWorker serves as a rank until the driver is gone; args are what follows WorkerVerb.
func RunWorker(args []string) error {
	if slices.Contains(args, rayactor.ActorFlag) {
		return rayactor.Main()
	}
	return process.Main()
}

// backend is what starts the ranks: the flag's choice, else uni for one rank and mp for more.
func (b *opening) backend() string {
	switch {
	case b.cfg.Parallel.Backend != "":
		return b.cfg.Parallel.Backend
	case b.ranks > 1:
		return "mp"
	}
	return "uni"
}

// startRanks starts the workers and waits until all have loaded.
func (b *opening) startRanks() (*executor.Executor, error) {
	p, q := &b.cfg.Parallel, &b.cfg.Queue
	o := executor.Options{
		Init: worker.Init{WorldSize: b.ranks, ModelDir: b.dir, LoadFormat: b.cfg.Model.LoadFormat, DType: b.info.DType,
			ISA: p.CPUISA, Threads: p.CPUThreads, Seed: b.cfg.Model.Seed, Blocks: b.info.Blocks, BlockSize: b.info.BlockSize,
			MaxSeqs: b.cfg.Schedule.MaxNumSeqs, MaxModelLen: b.info.MaxModelLen},
		CollectiveBytes: collectiveBytes, Log: b.opt.Log, LinksOnly: q.Transport == "link", PortRange: q.PortRange,
		QueueMemory: q.MemoryBytes, StallWarning: q.StallWarning, StepTimeout: q.StepTimeout,
		Progress: func(rank int, p queue.Progress) { b.progress(rank, p.Phase, p.Done, p.Total) },
	}
	if b.fromHub {
		// The snapshot's folder is named for its commit: all nodes load the same one.
		o.Init.Repo, o.Init.Revision = b.cfg.Model.Path, filepath.Base(b.dir)
		if dir := b.cfg.Model.DownloadDir; dir != "" {
			var err error
			if o.Init.DownloadDir, err = filepath.Abs(dir); err != nil {
				return nil, err
			}
		}
	}
	switch backend := b.backend(); backend {
	case "uni":
		if b.ranks > 1 {
			return nil, fmt.Errorf("--distributed-executor-backend uni runs one rank: --tensor-parallel-size %d needs mp or ray", b.ranks)
		}
		o.Launcher, o.InProcess = inproc.New(), true
	case "mp":
		out := b.opt.WorkerOutput
		if out == nil {
			out = os.Stderr
		}
		o.Launcher = process.New(out)
		if o.LinksOnly {
			o.Address = "127.0.0.1"
		}
	case "ray":
		l, err := b.connectRay()
		if err != nil {
			return nil, err
		}
		o.Launcher, o.Address = l, l.Address()
	default:
		return nil, fmt.Errorf("--distributed-executor-backend %q is not one of uni, mp, ray", backend)
	}
	x, err := executor.Start(b.ctx, o)
	if err != nil {
		logDetails(b.opt.Log, err)
	}
	return x, err
}

// connectRay joins the cluster that the ranks will be placed on.
func (b *opening) connectRay() (*rayactor.Launcher, error) {
	p, r := &b.cfg.Parallel, &b.cfg.Parallel.Ray
	l, err := rayactor.Connect(b.ctx, rayactor.Options{
		World: b.ranks, TensorParallel: p.TensorParallelSize, Python: r.Python,
		Address: r.Address, Namespace: r.Namespace, NodeIP: r.NodeIP, RuntimeEnv: r.RuntimeEnv, Nsight: r.Nsight,
		PlacementGroup: r.PlacementGroup, BundleIndices: r.BundleIndices, SkipBundle: r.SkipBundle,
		DeviceKey: r.DeviceKey, PerWorker: r.PerWorker, CPUThreads: p.CPUThreads,
		PlacementTimeout: r.PlacementTimeout, StrictEnv: r.StrictEnv, EnvAllow: r.EnvAllow,
		Environ: os.Environ(), Log: b.opt.Log,
		Progress: func(phase string) { b.progress(-1, phase, 0, 0) },
	})
	var usage *rayactor.UsageError
	if errors.As(err, &usage) {
		err = &config.UsageError{Err: err}
	}
	return l, err
}
