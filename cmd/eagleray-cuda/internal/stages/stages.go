// Package stages is what eagleray-cuda proof runs, one stage in a process: a first half hour with a
// GPU, in the order of what would stop all that follows. Without a GPU all of it runs on a machine
// for PTX, at the smallest sizes, and says so.
package stages

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
)

// Options say what stages run on, and how much of it.
type Options struct {
	// Driver has the device, Ordinal is its number there.
	Driver  driver.Driver
	Ordinal int
	// Machine is Driver where that is a machine for PTX, nil for a GPU.
	Machine *double.Driver
	// NCCL opens the library by which ranks exchange.
	NCCL func() (driver.NCCL, error)
	// CUBLASLt opens the library that may compute products of many rows.
	CUBLASLt func() (driver.CUBLASLt, error)
	// Signals lists handlers of signals that the driver installed and that were mended.
	Signals func() []string
	// Small has kernels run at the smallest sizes on a GPU as well, for tools that watch them.
	Small bool
	// Seed chooses all numbers.
	Seed uint64
	// Models is the folder of the fixtures, Families those of them to run; none is all.
	Models   string
	Families []string
	// Shapes are the models to measure, by name; none is all.
	Shapes []string
	// Soak is how long random batches are computed.
	Soak time.Duration
	// Peers are what other programs measured on the device.
	Peers Peers
}

// Row is one figure, or one fact.
type Row struct {
	Name string `json:"name"`
	// Unit is what Ours, Floor and Peer are in.
	Unit string `json:"unit,omitempty"`
	// Ours is the figure, Floor what nothing could be below, Peer another program's.
	Ours  *float64 `json:"ours,omitempty"`
	Floor *float64 `json:"floor,omitempty"`
	Peer  *float64 `json:"peer,omitempty"`
	// Failed says that it is not as it should be, Note why, or what else is known.
	Failed bool   `json:"failed,omitempty"`
	Note   string `json:"note,omitempty"`
	// Detail is what a stage's own records have beside all that.
	Detail any `json:"detail,omitempty"`
	// Listed says that a table of all stages has the row though it is good.
	Listed bool `json:"listed,omitempty"`
}

// Result is what a stage came to.
type Result struct {
	Stage  string `json:"stage"`
	Driver string `json:"driver"`
	Device string `json:"device,omitempty"`
	Pass   bool   `json:"pass"`
	// Seconds is how long it ran, of this process's time: no figure of a device.
	Seconds float64 `json:"seconds"`
	Summary string  `json:"summary,omitempty"`
	Error   string  `json:"error,omitempty"`
	Rows    []Row   `json:"rows"`
}

// stage is a part of the half hour.
type stage struct {
	name string
	// limit is how long it may run.
	limit time.Duration
	run   func(*run, context.Context) error
	// alone says that no other stage may run beside it: of the probe no other one may be worth a
	// try, and what measures wants the device for itself.
	alone bool
}

// run is a stage at work.
type run struct {
	*Options
	report  func(Row)
	summary string
	failed  int
	eager   bool // steps are computed launch by launch
}

// stages is all of them in their order.
func stages() []stage {
	return []stage{
		{"probe", time.Minute, (*run).probe, true},
		{"load", 3 * time.Minute, (*run).load, false},
		{"ptx", 5 * time.Minute, (*run).ptx, false},
		{"kernels", 7 * time.Minute, (*run).kernels, false},
		{"silicon", 7 * time.Minute, (*run).silicon, false},
		{"bits", 5 * time.Minute, (*run).bits, false},
		{"nccl", 5 * time.Minute, (*run).nccl, false},
		{"cublaslt", 3 * time.Minute, (*run).cublaslt, true},
		{"models", 7 * time.Minute, (*run).models, false},
		{"bench", 7 * time.Minute, (*run).bench, true},
		{"profile", 3 * time.Minute, (*run).profile, true},
		{"soak", 7 * time.Minute, (*run).soak, true},
	}
}

// Names are those of the stages, in their order.
func Names() (names []string) {
	for _, s := range stages() {
		names = append(names, s.name)
	}
	return names
}

// Limit is how long a stage may run, 0 for one that is not known.
func Limit(name string) time.Duration {
	for _, s := range stages() {
		if s.name == name {
			return s.limit
		}
	}
	return 0
}

// Alone says whether no other stage may run beside one.
func Alone(name string) bool {
	return slices.ContainsFunc(stages(), func(s stage) bool { return s.name == name && s.alone })
}

// Run runs a stage in the calling thread. Rows are reported as they come, for a stage may not live
// to its end; the result has none.
func Run(ctx context.Context, name string, opt Options, report func(Row)) Result {
	r := &run{Options: &opt}
	r.report = func(row Row) {
		if row.Failed {
			r.failed++
		}
		report(row)
	}
	result := Result{Stage: name, Driver: "libcuda", Rows: []Row{}}
	if opt.Machine != nil {
		result.Driver = "machine"
	}
	start := time.Now()
	err := r.start(ctx, name, &result)
	result.Seconds = time.Since(start).Seconds()
	result.Summary = r.summary
	result.Pass = err == nil && r.failed == 0
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		result.Error = fmt.Sprintf("late: %v", err)
	case err != nil:
		result.Error = err.Error()
	}
	return result
}

func (r *run) start(ctx context.Context, name string, result *Result) error {
	// A context of CUDA's is current in a thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, s := range stages() {
		if s.name != name {
			continue
		}
		info, err := r.info()
		if err != nil {
			return err
		}
		result.Device = info.Name
		return s.run(r, ctx)
	}
	return fmt.Errorf("no stage %q", name)
}

// info is the device as its driver describes it.
func (r *run) info() (driver.Info, error) {
	list, err := r.Driver.Devices()
	if err != nil {
		return driver.Info{}, fmt.Errorf("list devices: %w", err)
	}
	if r.Ordinal < 0 || r.Ordinal >= len(list) {
		return driver.Info{}, fmt.Errorf("device %d of %d", r.Ordinal, len(list))
	}
	return list[r.Ordinal], nil
}

// tiny says that sizes are those of a machine for PTX.
func (r *run) tiny() bool { return r.Machine != nil }

// cost is which cases of kernels there is time for.
func (r *run) cost() proof.Cost {
	if r.tiny() || r.Small {
		return proof.Small
	}
	return proof.Large
}

// cases are the cases of kernels, up to a cost.
func (r *run) cases(cost proof.Cost) proof.Options {
	return proof.Options{Driver: r.Driver, Ordinal: r.Ordinal, Seed: r.Seed, Cost: cost,
		Together: r.Machine != nil, PTX: r.Machine != nil}
}

// open opens the device, and its context as well, for what the device does not tell.
func (r *run) open(dtype compute.DType) (*cuda.Device, *watchedContext, error) {
	w := &watched{Driver: r.Driver}
	threads := runtime.NumCPU()
	if r.tiny() {
		threads = 1
	}
	d, err := cuda.New(cuda.Options{Driver: w, Ordinal: r.Ordinal, DType: dtype,
		Threads: threads, PTX: r.tiny(), Eager: r.eager})
	if err != nil {
		return nil, nil, err
	}
	return d, w.context, nil
}

// figure is a number of a row.
func figure(v float64) *float64 { return &v }
