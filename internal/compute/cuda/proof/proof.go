// Package proof holds a CUDA device's kernels to references in float64, on whatever driver there
// is: each case runs a kernel by the device's public calls, at a shape, on numbers from a seed. The
// same cases run on the machine for PTX, where they are part of the tests, and on a GPU, where they
// are the first thing to look at; Compare holds one to the other.
package proof

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// Cost is how long cases take: each level has those of the levels before it.
type Cost int

const (
	// Small has every kernel at one or two shapes, in seconds on a machine for PTX.
	Small Cost = iota
	// Full has all shapes whose tiles and tails differ.
	Full
	// Large has shapes of real models as well, which are for a GPU.
	Large
)

// Options say what cases run on.
type Options struct {
	// Driver has the device, Ordinal is its number there.
	Driver  driver.Driver
	Ordinal int
	// Seed chooses the numbers.
	Seed uint64
	// Cost chooses the cases, Only those that are about some kernel of a list; none is all.
	Cost Cost
	Only []kernels.ID
	// Together says that contexts of one process open each other's memory, as a double's do: cases
	// of several ranks are run, too. A GPU's driver has a process open that of others alone.
	Together bool
	// NCCL is how ranks exchange instead, which have a device each where there are several: only
	// cases of ranks are run, of no more than there are devices on a GPU's driver.
	NCCL cuda.NCCL
	// PTX has the driver compile the kernels.
	PTX bool
}

// Case is a way to use kernels.
type Case struct {
	// Name says what is computed, and the shape.
	Name string
	// DType is what the device runs models in.
	DType compute.DType
	// Kernels are those that the case is about. It may launch others.
	Kernels []kernels.ID
	cost    Cost
	ranks   int  // that sum together, 0 for one alone
	groups  bool // by warp groups, which only some devices have
	run     func(s *subject)
}

// Finding is what a case came to.
type Finding struct {
	Case    string   `json:"case"`
	DType   string   `json:"dtype"`
	Kernels []string `json:"kernels"`
	// Error is the largest difference from the reference, relative to the largest number of the
	// output that it is in, and Tolerance what it may be there; Output names that output.
	Output    string  `json:"output"`
	Error     float64 `json:"error"`
	Tolerance float64 `json:"tolerance"`
	// Hash is of the bits of all outputs; Same says that a second run had the same.
	Hash string `json:"hash"`
	Same bool   `json:"same"`
}

// Pass says that the kernels computed what the reference does, and the same bits twice.
func (f *Finding) Pass() bool { return f.Same && f.Error <= f.Tolerance }

// output is numbers that a case computed, and what they should be.
type output struct {
	name      string
	got       []float32
	want      []float64
	tolerance float64
}

// sixteenBits are the types that models run in.
var sixteenBits = [...]compute.DType{compute.BFloat16, compute.Float16}

// Cases are all cases up to a cost.
func Cases(cost Cost) (list []Case) {
	for _, dtype := range sixteenBits {
		for _, some := range [][]Case{rowCases(), normCases(), productCases(dtype),
			codesCases(dtype), cacheCases(), attentionCases(dtype), attendCases(),
			splitCases(), deltaCases(), scanCases(), convolutionCases(), groupCases(),
			adapterCases(),
			mixtureCases(), fusedCases(), sampledCases(), rankCases()} {
			list = add(list, some, dtype, cost)
		}
	}
	for _, some := range [][]Case{productCases(compute.Float32), normCases(),
		attentionCases(compute.Float32), adapterCases()} {
		list = add(list, some, compute.Float32, cost)
	}
	return list
}

// add adds cases of a type, up to a cost. The kernels of those of float16 are named by others'.
func add(list, some []Case, dtype compute.DType, cost Cost) []Case {
	for _, c := range some {
		c.DType = dtype
		for i, k := range c.Kernels {
			if dtype == compute.Float16 {
				c.Kernels[i] = k.F16()
			}
		}
		if c.cost <= cost {
			list = append(list, c)
		}
	}
	return list
}

// Run runs the cases, one after the other, and reports each. It returns how often each kernel was
// launched. What a kernel computed wrong is in its finding; an error ends the run.
func Run(ctx context.Context, opt Options, report func(Finding)) (
	launched [kernels.Count]uint64, err error) {
	err = eachDevice(ctx, opt, func(d *cuda.Device, c *Case) error {
		first, err := outputsOf(d, c, opt)
		if err != nil {
			return err
		}
		second, err := outputsOf(d, c, opt)
		if err != nil {
			return err
		}
		f := judged(c, first)
		f.Same = f.Hash == hashOf(second)
		report(f)
		return nil
	}, func(d *cuda.Device) {
		for k, n := range d.Launches() {
			launched[k] += n
		}
	})
	return launched, err
}

// eachDevice has each case visited with a device of its type; done is called before one is closed.
func eachDevice(ctx context.Context, opt Options, visit func(*cuda.Device, *Case) error,
	done func(*cuda.Device)) error {
	devices, err := opt.Driver.Devices()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	if opt.Ordinal < 0 || opt.Ordinal >= len(devices) {
		return fmt.Errorf("device %d of %d", opt.Ordinal, len(devices))
	}
	info := devices[opt.Ordinal]
	list := slices.DeleteFunc(Cases(opt.Cost), func(c Case) bool {
		if slices.ContainsFunc(c.Kernels, func(k kernels.ID) bool {
			return !k.Fits(info.Major, info.Minor)
		}) {
			return true
		}
		if opt.NCCL.Open != nil {
			return c.ranks < 2 || c.ranks > len(devices) && !opt.Together
		}
		return c.ranks > 1 && !opt.Together
	})
	if len(opt.Only) > 0 {
		list = slices.DeleteFunc(list, func(c Case) bool {
			return !slices.ContainsFunc(c.Kernels, func(k kernels.ID) bool {
				return slices.Contains(opt.Only, k)
			})
		})
	}
	for from := 0; from < len(list); {
		to := from
		for to < len(list) && list[to].DType == list[from].DType {
			to++
		}
		if err := onDevice(ctx, opt, list[from:to], visit, done); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func onDevice(ctx context.Context, opt Options, list []Case,
	visit func(*cuda.Device, *Case) error, done func(*cuda.Device)) error {
	d, err := open(opt, list[0].DType)
	if err != nil {
		return err
	}
	defer d.Close()
	for i := range list {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("before %s of %v: %w", list[i].Name, list[i].DType, err)
		}
		if err := visit(d, &list[i]); err != nil {
			return fmt.Errorf("%s of %v: %w", list[i].Name, list[i].DType, err)
		}
	}
	done(d)
	return nil
}

func open(opt Options, dtype compute.DType) (*cuda.Device, error) {
	return cuda.New(cuda.Options{Driver: opt.Driver, Ordinal: opt.Ordinal, DType: dtype,
		Threads: 1, NCCL: opt.NCCL, PTX: opt.PTX})
}

// outputsOf runs a case once. Its numbers depend on the seed and on its name.
func outputsOf(d *cuda.Device, c *Case, opt Options) ([]output, error) {
	name := fnv.New64a()
	name.Write([]byte(c.Name))
	d.UseWarpGroups(c.groups)
	s := &subject{Device: d, dtype: c.DType, opt: opt,
		random: rand.New(rand.NewPCG(opt.Seed, name.Sum64()))}
	c.run(s)
	s.free()
	if err := d.Err(); err != nil {
		return nil, err
	}
	if s.err == nil && len(s.outputs) == 0 {
		return nil, fmt.Errorf("nothing was computed")
	}
	return s.outputs, s.err
}

// judged is the finding of a case: of its outputs the one that is nearest to its tolerance, or
// farthest beyond.
func judged(c *Case, outputs []output) Finding {
	f := Finding{Case: c.Name, DType: c.DType.String(), Hash: hashOf(outputs), Error: -1}
	for _, k := range c.Kernels {
		f.Kernels = append(f.Kernels, k.Name())
	}
	share := func(e, tolerance float64) float64 {
		if e == 0 {
			return 0
		}
		return e / tolerance // infinite where no error is allowed
	}
	for i := range outputs {
		o := &outputs[i]
		e := o.error()
		if f.Error < 0 || share(e, o.tolerance) > share(f.Error, f.Tolerance) {
			f.Output, f.Error, f.Tolerance = o.name, e, o.tolerance
		}
	}
	return f
}

// error is the largest difference from the reference, relative to its largest number.
func (o *output) error() float64 {
	if len(o.got) != len(o.want) {
		return math.MaxFloat64
	}
	most, worst := 0.0, 0.0
	for i, v := range o.want {
		most = max(most, math.Abs(v))
		e := math.Abs(float64(o.got[i]) - v)
		if math.IsNaN(e) {
			return math.MaxFloat64 // JSON has no infinity
		}
		worst = max(worst, e)
	}
	if worst == 0 {
		return 0
	}
	if most == 0 {
		return math.MaxFloat64
	}
	return min(worst/most, math.MaxFloat64)
}

// hashOf is a hash of the bits of all outputs.
func hashOf(outputs []output) string {
	h := fnv.New64a()
	var b [4]byte
	for _, o := range outputs {
		for _, v := range o.got {
			bits := math.Float32bits(v)
			b = [4]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}
			h.Write(b[:])
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// Covered lists the kernels that have a case: a line for each, so that one that is added shows.
func Covered() []kernels.ID { return slices.Clone(covered[:]) }
