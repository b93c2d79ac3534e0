// Package kernelbench measures the kernels of the CPU device, each beside what bounds it in the
// same run: the time in which the same threads read as many bytes, and the time in which they
// multiply as often with the same instruction, in registers.
package kernelbench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/cmd/internal/bandwidth"
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// Kernels are those that can be measured.
var Kernels = []string{"product", "attention"}

// Types are how weights can be stored.
var Types = []string{"bf16", "f16", "f32", "int8", "codes8", "codes4", "e4m3"}

// Options say what is measured: each combination.
type Options struct {
	Kernels []string
	// Types are those of weights; of attention, of the cache where it has them.
	Types []string
	// Shapes are [output features][input features] of products.
	Shapes [][2]int
	// Rows are how many rows are multiplied at once, and attend.
	Rows []int
	// Positions are how many an attention's last row has before it and with it.
	Positions []int
	// Levels are instruction sets by name; none is all that this machine has but portable Go, or
	// that if it has no other.
	Levels  []string
	Threads []int
	// Rounds is how often each row of the table is measured, in turn with its bounds.
	Rounds int
}

// Row is the figures of one kernel. Times are medians.
type Row struct {
	Kernel  string `json:"kernel"`
	Type    string `json:"type"`
	Level   string `json:"isa"`
	Shape   string `json:"shape"`
	Threads int    `json:"threads"`
	Rows    int    `json:"rows"`
	// Bytes are those of the weights, or of the keys and values that are read; Multiplies are
	// multiplications with addition.
	Bytes      int64 `json:"bytes"`
	Multiplies int64 `json:"multiply_adds"`
	// US is the kernel's time in microseconds, ReadUS that of reading Bytes, and MultiplyUS that of
	// Multiplies by Instruction; it is 0 where there is none.
	US          float64 `json:"us"`
	ReadUS      float64 `json:"read_us"`
	MultiplyUS  float64 `json:"multiply_us"`
	Instruction string  `json:"instruction,omitempty"`
	// Ratio is the time beside the greater of the two bounds, the median of those of the rounds.
	Ratio float64 `json:"ratio"`
}

// Header is the first line of a table of rows.
const Header = "kernel     type    isa         shape          rows  threads        us    GB/s  " +
	"read GB/s   GFLOP/s  peak GFLOP/s   time / floor"

// String is a line of the table.
func (r Row) String() string {
	rate := func(n int64, us float64) float64 {
		if us == 0 {
			return 0
		}
		return float64(n) / us / 1e3
	}
	bound := "read"
	if r.MultiplyUS > r.ReadUS {
		bound = "multiply"
	}
	const line = "%-10s %-7s %-11s %-13s %5d %8d %9.1f %7.2f %10.2f %9.1f %13.1f   %5.2f (%s)"
	return fmt.Sprintf(line,
		r.Kernel, r.Type, r.Level, r.Shape, r.Rows, r.Threads, r.US, rate(r.Bytes, r.US),
		rate(r.Bytes, r.ReadUS), 2*rate(r.Multiplies, r.US), 2*rate(r.Multiplies, r.MultiplyUS),
		r.Ratio, bound)
}

// subject is a kernel that is ready to be run.
type subject struct {
	row  Row
	run  func()
	free func()
}

// Measure measures all, and calls each with every row as it comes. An error names the option that
// this machine, or this program, does not have.
func Measure(ctx context.Context, o Options, each func(Row)) error {
	if len(o.Levels) == 0 {
		for _, l := range isa.All() {
			if l != isa.Portable || isa.Best() == isa.Portable {
				o.Levels = append(o.Levels, l.String())
			}
		}
	}
	for _, level := range o.Levels {
		for _, threads := range o.Threads {
			for _, kernel := range o.Kernels {
				for _, t := range o.Types {
					var err error
					switch kernel {
					case "product":
						err = products(ctx, &o, level, threads, t, each)
					case "attention":
						err = attentions(ctx, &o, level, threads, t, each)
					default:
						err = fmt.Errorf("kernel %q is not one of %v", kernel, Kernels)
					}
					if err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// dtypes are the types that models run in, by their names here.
var dtypes = map[string]compute.DType{"bf16": compute.BFloat16, "f16": compute.Float16,
	"f32": compute.Float32}

// caches are the types that KV caches have.
var caches = map[string]compute.DType{"bf16": compute.BFloat16, "f16": compute.Float16,
	"f32": compute.Float32, "int8": compute.Int8, "e4m3": compute.E4M3}

func products(ctx context.Context, o *Options, level string, threads int, t string,
	each func(Row)) error {
	dtype := dtypes[t] // bfloat16 for all that is quantised
	d, err := cpu.New(cpu.Options{Threads: threads, ISA: level, DType: dtype})
	if err != nil {
		return err
	}
	defer d.Close()
	for _, shape := range o.Shapes {
		w, err := pack(d, t, shape[0], shape[1])
		if err != nil {
			return err
		}
		for _, rows := range o.Rows {
			var x, dst compute.Tensor
			d.Resize(&x, rows, shape[1])
			for i := range x.Floats() {
				x.Floats()[i] = float32(i%7) / 8
			}
			d.Resize(&dst, rows, shape[0])
			s := subject{row: Row{Kernel: "product", Type: t, Level: level, Threads: threads,
				Shape: fmt.Sprintf("%dx%d", shape[0], shape[1]), Rows: rows,
				Bytes: int64(w.Bytes()), Multiplies: int64(rows) * int64(shape[0]*shape[1])},
				run: func() { w.Product(dst.All(), x.All(), nil) }}
			r, err := s.measure(ctx, d, o.Rounds, t == "bf16")
			if err != nil {
				return errors.Join(err, ctx.Err())
			}
			each(r)
		}
		w.Free()
	}
	return nil
}

// pack makes a weight of a type. Its numbers are small and differ from row to row: how long a
// product takes does not depend on them.
func pack(d *cpu.Device, t string, out, in int) (compute.Weight, error) {
	number := func(i int) float32 { return float32(i%13-6) / 64 }
	if dtype, plain := dtypes[t]; plain || t == "int8" {
		size := dtype.Size()
		data := make([]byte, out*in*size)
		for i := range out * in {
			bits := math.Float32bits(number(i))
			switch dtype {
			case compute.Float32:
				data[4*i], data[4*i+1] = byte(bits), byte(bits>>8)
				data[4*i+2], data[4*i+3] = byte(bits>>16), byte(bits>>24)
			case compute.BFloat16:
				data[2*i], data[2*i+1] = byte(bits>>16), byte(bits>>24)
			case compute.Float16:
				data[2*i], data[2*i+1] = byte(i), 0x20|byte(i%8)
			}
		}
		s := compute.Source{DType: dtype, Data: data, Rows: out, RowHi: out, Cols: in, ColHi: in}
		if t == "int8" {
			return d.PackInt8(1, s)
		}
		return d.Pack(1, s)
	}
	kinds := map[string]compute.CodeType{"codes8": compute.Code8, "codes4": compute.Code4,
		"e4m3": compute.CodeE4M3}
	kind, known := kinds[t]
	if !known {
		return nil, fmt.Errorf("type %q is not one of %v", t, Types)
	}
	const group = 32
	c := compute.Codes{Type: kind, Rows: out, Cols: in, Group: group, Code: make([]byte, out*in),
		Scale: make([]float32, out*((in+group-1)/group))}
	for i := range c.Values {
		c.Values[i] = float32(i) - 8
	}
	for i := range c.Code {
		c.Code[i] = byte(i % 13)
	}
	for i := range c.Scale {
		c.Scale[i] = 1. / 64
	}
	return d.PackCodes(1, c)
}

// The attention that is measured: Qwen3-0.6B's.
const heads, kvHeads, headDim, blockSize = 16, 8, 128, 16

func attentions(ctx context.Context, o *Options, level string, threads int, t string,
	each func(Row)) error {
	dtype, known := caches[t]
	if !known {
		return nil // a cache has no such type
	}
	d, err := cpu.New(cpu.Options{Threads: threads, ISA: level, DType: compute.BFloat16})
	if err != nil {
		return err
	}
	defer d.Close()
	for _, positions := range o.Positions {
		for _, rows := range o.Rows {
			s, err := attention(d, dtype, positions, min(rows, positions))
			if err != nil {
				return err
			}
			s.row.Type, s.row.Level, s.row.Threads = t, level, threads
			r, err := s.measure(ctx, d, o.Rounds, false)
			s.free()
			if err != nil {
				return err
			}
			each(r)
		}
	}
	return nil
}

// attention is that of the last rows of one sequence.
func attention(d *cpu.Device, dtype compute.DType, positions, rows int) (*subject, error) {
	blocks := (positions + blockSize - 1) / blockSize
	shape := compute.CacheShape{DType: dtype, Blocks: blocks, BlockSize: blockSize,
		Layers: []compute.CacheLayer{{Heads: kvHeads, Dim: headDim}}}
	c, err := d.NewCache(shape)
	if err != nil {
		return nil, err
	}
	table := make([]int32, blocks)
	for i := range table {
		table[i] = int32(i)
	}
	var k compute.Tensor
	d.Resize(&k, positions, kvHeads*headDim)
	for i := range k.Floats() {
		k.Floats()[i] = float32(i%11) / 16
	}
	slots := make([]int32, positions)
	for i := range slots {
		slots[i] = int32(i)
	}
	d.WriteCache(c, 0, k.All(), k.All(), compute.CacheScales{}, slots)
	b := &compute.Batch{Tables: [][]int32{table}}
	pairs := int64(0)
	for p := positions - rows; p < positions; p++ {
		b.Position, b.Seq = append(b.Position, int32(p)), append(b.Seq, 0)
		pairs += int64(p + 1)
	}
	var q, dst compute.Tensor
	d.Resize(&q, rows, heads*headDim)
	for i := range q.Floats() {
		q.Floats()[i] = float32(i%5) / 8
	}
	d.Resize(&dst, rows, heads*headDim)
	args := compute.AttentionArgs{Heads: heads, KVHeads: kvHeads, HeadDim: headDim,
		Scale: float32(1 / math.Sqrt(headDim))}
	return &subject{
		row: Row{Kernel: "attention", Rows: rows, Shape: strconv.Itoa(positions),
			Bytes:      int64(shape.Layers[0].Bytes(positions, dtype)),
			Multiplies: 2 * pairs * heads * headDim},
		run:  func() { d.Attention(c, 0, b, args, &dst, q.All()) },
		free: func() { _ = c.Free() },
	}, nil
}

// instruction is a loop of one instruction in registers: so many multiplications in each round.
type instruction struct {
	name string
	loop func(rounds int)
	each int
}

// chunksPerThread is how finely the bounds are divided, as kernels are: a thread that is held up
// leaves its part to the others.
const chunksPerThread = 4

// least is how long a sample takes at least: the same work is repeated until it does.
const least = 4 * time.Millisecond

// measure runs the kernel and its bounds in turn.
func (s *subject) measure(ctx context.Context, d *cpu.Device, rounds int, bf16 bool) (Row, error) {
	r := s.row
	level, err := isa.Parse(d.ISA())
	if err != nil {
		return r, err
	}
	parts := chunksPerThread * r.Threads
	memory, err := bandwidth.NewReader(parts, int(r.Bytes))
	if err != nil {
		return r, err
	}
	defer func() { _ = memory.Close() }()
	read := &task{do: func(chunk int) { memory.ReadPart(chunk) }}
	multiply := &task{}
	ins := instructionOf(level, bf16)
	if ins != nil {
		r.Instruction = ins.name
		n := int(max(1, r.Multiplies/int64(ins.each*parts)))
		multiply.do = func(int) { ins.loop(n) }
	}
	run := []func(){s.run, func() { d.Pool().Run(read, parts) }}
	if ins != nil {
		run = append(run, func() { d.Pool().Run(multiply, parts) })
	}
	var times [3][]float64
	var repeat [3]int
	for i, f := range run {
		f()
		repeat[i] = 1 + int(least/max(timed(f, 1), time.Microsecond))
	}
	var ratios []float64
	for range max(rounds, 1) {
		if err := ctx.Err(); err != nil {
			return r, err
		}
		for i, f := range run {
			took := timed(f, repeat[i])
			times[i] = append(times[i], float64(took.Nanoseconds())/float64(repeat[i])/1e3)
		}
		floor := last(times[1])
		if ins != nil {
			floor = max(floor, last(times[2]))
		}
		ratios = append(ratios, last(times[0])/floor)
	}
	r.US, r.ReadUS, r.Ratio = median(times[0]), median(times[1]), median(ratios)
	if ins != nil {
		r.MultiplyUS = median(times[2])
	}
	return r, nil
}

// task runs a function for each chunk.
type task struct{ do func(chunk int) }

// Do implements pool.Task.
func (t *task) Do(chunk, _ int) { t.do(chunk) }

func timed(f func(), repeat int) time.Duration {
	start := time.Now()
	for range repeat {
		f()
	}
	return time.Since(start)
}

func last(v []float64) float64 { return v[len(v)-1] }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
