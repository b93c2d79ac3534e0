package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/nccl"
	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/stages"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
)

// The drivers of --driver.
const (
	onGPU     = "libcuda"
	onMachine = "machine"
)

// proofFlags are what the flags of proof say.
type proofFlags struct {
	driver, library string
	stage, skip     []string
	options         stages.Options
	peers           string
	deadline        time.Duration
	output, show    string
	// here is the stage that this process runs itself, for the process that started it.
	here string
}

func newProof() *cobra.Command {
	var f proofFlags
	c := &cobra.Command{
		Use:   "proof",
		Short: "Prove the kernels, models and speed of a GPU, in stages",
		Long: `proof looks at what a GPU has to do, in the order of what would stop the rest:

  probe    what the driver and the device are, signals
  load     all kernels: time to load, registers, no local memory
  kernels  each kernel beside float64, twice with the same bits
  silicon  each kernel on the device beside the machine for PTX
  bits     rows alone, beside others, in chunks: the same bits
  nccl     sums of several GPUs by NCCL: exact; one GPU is left out
  cublaslt products of many rows by cuBLASLt: whose bits, and how fast, beside kernels
  models   greedy tokens of the fixtures in --models beside transformers'
  bench    steps of Qwen3-0.6B and Qwen3-8B beside floors by the device's own bandwidth
  profile  the same steps of two layers, launch by launch
  soak     random batches: flat memory, no error

Each stage runs in a process of its own, for at most its own time: one that fails, hangs or dies
stops no other. Those that measure nothing run beside each other. Results go to --output-json after
each stage, an object a line, and to one table in the end. The exit code is 1 when a stage failed,
and 3 when no device can be used. --driver machine needs no GPU: all stages run at small sizes on a
machine that executes the kernels' PTX.

  eagleray cuda proof --models testdata/models --output-json proof.json
  eagleray cuda proof --stage kernels,silicon
  eagleray cuda proof --driver machine --models testdata/models
  eagleray cuda proof --show proof.json --peers peers.json`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.define(c.Flags())
	return c
}

func (f *proofFlags) define(s *pflag.FlagSet) {
	o := &f.options
	s.StringVar(&f.driver, "driver", onGPU, "what executes kernels: libcuda or machine")
	s.StringVar(&f.library, "libcuda", "",
		"the driver's libcuda.so.1 (default: the one that the system finds)")
	s.IntVar(&o.Ordinal, "device", 0, "the number of the GPU")
	s.StringSliceVar(&f.stage, "stage", nil, "stages to run (default: all)")
	s.StringSliceVar(&f.skip, "skip", nil, "stages to leave out")
	s.StringVar(&o.Models, "models", "",
		"folder of models with goldens.json, for the stage models, which is else left out")
	s.StringSliceVar(&o.Families, "families", nil,
		"models of that folder to run (default: all; on a machine two)")
	s.StringSliceVar(&o.Shapes, "shapes", nil,
		"models to measure: "+strings.Join(stages.ShapeNames(), ", ")+" (default: all)")
	s.BoolVar(&o.Small, "small", false, "the smallest sizes of kernels, for tools that watch them")
	s.Uint64Var(&o.Seed, "seed", 1, "what random numbers come of")
	s.DurationVar(&o.Soak, "soak", 2*time.Minute, "how long to compute random batches")
	s.DurationVar(&f.deadline, "deadline", 0,
		"how long a stage may run (default: its own time, at most 7m)")
	s.StringVar(&f.peers, "peers", "", "file of other programs' figures (gpu_proof_peers.py)")
	s.StringVar(&f.output, "output-json", "", "file that results are appended to")
	s.StringVar(&f.show, "show", "", "print the table of such a file, and run nothing")
	s.StringVar(&f.here, "run-here", "", "")
	s.Lookup("run-here").Hidden = true
}

func (f *proofFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	switch {
	case f.show != "":
		return f.showTable(c)
	case f.here != "":
		return f.runHere(c)
	}
	return f.supervise(c)
}

// check looks for mistakes in the flags.
func (f *proofFlags) check() error {
	if f.driver != onGPU && f.driver != onMachine {
		return cli.UsageError("--driver %s is neither %s nor %s", f.driver, onGPU, onMachine)
	}
	for flag, names := range map[string][]string{"stage": f.stage, "skip": f.skip} {
		for _, name := range names {
			if !slices.Contains(stages.Names(), name) {
				return cli.UsageError("--%s %s is none of %s", flag, name,
					strings.Join(stages.Names(), ", "))
			}
		}
	}
	for _, name := range f.options.Shapes {
		if !slices.Contains(stages.ShapeNames(), name) {
			return cli.UsageError("--shapes %s is none of %s", name,
				strings.Join(stages.ShapeNames(), ", "))
		}
	}
	return nil
}

// chosen are the stages to run, in their order. That of models needs a folder.
func (f *proofFlags) chosen() (names []string) {
	for _, name := range stages.Names() {
		wanted := len(f.stage) == 0 && (name != "models" || f.options.Models != "") ||
			slices.Contains(f.stage, name)
		if wanted && !slices.Contains(f.skip, name) {
			names = append(names, name)
		}
	}
	return names
}

// limit is how long a stage may run.
func (f *proofFlags) limit(stage string) time.Duration {
	if f.deadline > 0 {
		return f.deadline
	}
	return stages.Limit(stage)
}

// open opens the driver, for stages.
func (f *proofFlags) open() error {
	o := &f.options
	if f.driver == onMachine {
		o.Machine = &double.Driver{Threads: runtime.NumCPU()}
		o.Driver, o.Signals = o.Machine, func() []string { return nil }
		o.NCCL = func() (driver.NCCL, error) { return new(double.NCCL), nil }
		o.CUBLASLt = func() (driver.CUBLASLt, error) { return new(double.CUBLASLt), nil }
		return nil
	}
	l, err := libcuda.Open(f.library)
	if err != nil {
		return &noDeviceError{err.Error()}
	}
	o.Driver = l
	o.NCCL = func() (driver.NCCL, error) { return nccl.OpenNamed() }
	o.CUBLASLt = products()
	o.Signals = func() (list []string) {
		for _, x := range l.Repaired() {
			list = append(list, x.String())
		}
		return list
	}
	return nil
}

// title says what a table is of.
func (f *proofFlags) title() string {
	if f.driver == onMachine {
		return "On a machine for PTX, not on a GPU: what is counted is right, " +
			"no time says anything."
	}
	return fmt.Sprintf("On GPU %d, by NVIDIA's driver.", f.options.Ordinal)
}
