package ptx

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
)

// attention is a launch of testdata/attention.cu.
type attention struct {
	mem                  *Memory
	params               []byte
	grid                 [3]uint32
	heads, kvHeads, page int
	lengths              []int32
	split, splits        int
	q, kv                []uint16
	pages                []int32
	out, sums            uint64
}

const (
	attentionShared = 16*256 + 2*3*64*256
	headDim         = 128
)

func parseFile(t testing.TB, name string) ([]byte, *Module) {
	t.Helper()
	src, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return src, mustParse(t, string(src))
}

func bfloats(r *rand.Rand, n int) []uint16 {
	all := make([]uint16, n)
	for i := range all {
		all[i] = nearestBfloat(float64(float32(r.NormFloat64())))
	}
	return all
}

func newAttention(t testing.TB, heads, kvHeads, split int, lengths ...int32) *attention {
	a := &attention{mem: NewMemory(1 << 30), heads: heads, kvHeads: kvHeads, page: 16, split: split,
		lengths: lengths}
	longest := 0
	for _, n := range lengths {
		longest = max(longest, int(n))
	}
	a.splits = (longest + split - 1) / split
	stride := (longest + a.page - 1) / a.page
	n := len(lengths)*stride + 1
	r := rand.New(rand.NewPCG(1, 2))
	a.q = bfloats(r, len(lengths)*heads*headDim)
	a.kv = bfloats(r, n*2*kvHeads*a.page*headDim)
	for i := range len(lengths) * stride {
		a.pages = append(a.pages, int32((i*7+3)%n))
	}
	results := uint64(len(lengths) * heads * a.splits * 4)
	a.out, _ = a.mem.Alloc(results * headDim)
	a.sums, _ = a.mem.Alloc(results * 2)
	a.params = params(upload(t, a.mem, a.q), upload(t, a.mem, a.kv), upload(t, a.mem, a.pages),
		upload(t, a.mem, lengths), a.out, a.sums, int32(stride), int32(heads), int32(kvHeads),
		int32(a.page), int32(split), int32(a.splits), float32(math.Log2E/math.Sqrt(headDim)),
		int32(0))
	a.grid = [3]uint32{uint32(a.splits), uint32(kvHeads), uint32(len(lengths))}
	return a
}

func (a *attention) launch(m *Machine, mod *Module) (Stats, error) {
	m.Memory = a.mem
	return m.Launch(mod.Kernel("attention"), a.grid, [3]uint32{128, 1, 1}, attentionShared,
		a.params)
}

// cached is the offset of a token's key in the cache; its value lies a page of heads behind.
func (a *attention) cached(sequence, token, head int) int {
	stride := len(a.pages) / len(a.lengths)
	page := int(a.pages[sequence*stride+token/a.page])
	return ((page*2*a.kvHeads+head)*a.page + token%a.page) * headDim
}

// results are the kernel's, with the splits added up.
func (a *attention) results(t testing.TB) (rows [][]float64, hash uint64) {
	n := len(a.lengths) * a.heads
	out := download[float32](t, a.mem, a.out, n*a.splits*headDim)
	sums := download[float32](t, a.mem, a.sums, n*a.splits*2)
	h := fnv.New64a()
	for row := range n {
		parts := (int(a.lengths[row/a.heads]) + a.split - 1) / a.split
		most, total := math.Inf(-1), 0.0
		for s := range parts {
			most = max(most, float64(sums[(row*a.splits+s)*2]))
		}
		sum := make([]float64, headDim)
		for s := range parts {
			at := row*a.splits + s
			e := math.Exp2(float64(sums[at*2]) - most)
			total += e * float64(sums[at*2+1])
			for d := range sum {
				x := out[at*headDim+d]
				sum[d] += e * float64(x)
				h.Write(params(x))
			}
		}
		for d := range sum {
			sum[d] /= total
		}
		rows = append(rows, sum)
	}
	return rows, h.Sum64()
}

// want is the attention of a row in float64.
func (a *attention) want(row int) []float64 {
	sequence, head := row/a.heads, row%a.heads/(a.heads/a.kvHeads)
	n := int(a.lengths[sequence])
	scores := make([]float64, n)
	most := math.Inf(-1)
	for t := range n {
		key := a.kv[a.cached(sequence, t, head):]
		for d := range headDim {
			scores[t] += bfloatValue(a.q[row*headDim+d]) * bfloatValue(key[d])
		}
		scores[t] /= math.Sqrt(headDim)
		most = max(most, scores[t])
	}
	total := 0.0
	out := make([]float64, headDim)
	for t := range n {
		e := math.Exp(scores[t] - most)
		total += e
		value := a.kv[a.cached(sequence, t, head)+a.kvHeads*a.page*headDim:]
		for d := range out {
			out[d] += e * bfloatValue(value[d])
		}
	}
	for d := range out {
		out[d] /= total
	}
	return out
}

// worst is the largest relative error of a row.
func (a *attention) worst(rows [][]float64) (worst float64) {
	for row, got := range rows {
		num, den := 0.0, 0.0
		for d, x := range a.want(row) {
			num += (x - got[d]) * (x - got[d])
			den += x * x
		}
		if e := math.Sqrt(num / den); !(e <= worst) {
			worst = e
		}
	}
	return worst
}

func smallAttention(t testing.TB) *attention { return newAttention(t, 8, 2, 128, 300, 37, 129) }

func TestAttention(t *testing.T) {
	_, mod := parseFile(t, "attention.ptx")
	var first uint64
	for seed := range uint64(9) {
		a := smallAttention(t)
		m := &Machine{Seed: seed, Check: seed%2 == 0, Threads: 2, Banks: seed == 0}
		stats, err := a.launch(m, mod)
		if err != nil {
			t.Fatal(err)
		}
		rows, hash := a.results(t)
		if seed == 0 {
			first = hash
			if e := a.worst(rows); !(e < 3e-3) {
				t.Errorf("the error is %g", e)
			}
			if stats.Mma == 0 || stats.GlobalRead == 0 || stats.GlobalWritten == 0 ||
				stats.BankConflicts == 0 || stats.SharedAccesses == 0 {
				t.Errorf("counts are missing: %+v", stats)
			}
		}
		if hash != first {
			t.Errorf("seed %d gives other bits", seed)
		}
	}
}

// TestAttentionMutants wants each defect of the kernel to be found: by a fault, or by numbers.
// Those that change nothing are listed.
func TestAttentionMutants(t *testing.T) {
	src, mod := parseFile(t, "attention.ptx")
	good := smallAttention(t)
	if _, err := good.launch(&Machine{}, mod); err != nil {
		t.Fatal(err)
	}
	_, hash := good.results(t)
	var missed []string
	all := Mutants(src)
	for _, mutant := range all {
		a := smallAttention(t)
		m := &Machine{Check: true, Threads: 2}
		if _, err := a.launch(m, mustParse(t, string(mutant.Source()))); err != nil {
			continue
		}
		if _, h := a.results(t); h == hash {
			missed = append(missed, mutant.Name)
		}
	}
	t.Logf("%d mutants, %d not found: %q", len(all), len(missed), missed)
	// The last wait: only empty groups are left there. Two packings: rows 8 to 15 of the tile are
	// zeros with four query heads.
	if len(all) < 30 || len(missed) != 3 {
		t.Errorf("%d mutants of %d are not found, not 3", len(missed), len(all))
	}
}

// BenchmarkAttention runs the prototype's case: 96 blocks of 128 threads, 26,624 products. Rates
// are of one core's user time.
func BenchmarkAttention(b *testing.B) {
	_, mod := parseFile(b, "attention.ptx")
	for _, check := range []bool{false, true} {
		name := "unchecked"
		if check {
			name = "checked"
		}
		b.Run(name, func(b *testing.B) {
			a := newAttention(b, 32, 8, 256, 1000, 37, 513)
			m := &Machine{Check: check}
			var stats Stats
			start := userTime(b)
			for b.Loop() {
				var err error
				if stats, err = a.launch(m, mod); err != nil {
					b.Fatal(err)
				}
			}
			spent := (userTime(b) - start) / float64(b.N)
			b.ReportMetric(float64(stats.Mma)/spent, "mma/s")
			b.ReportMetric(spent/float64(stats.Instructions)*1e9, "ns/instruction")
		})
	}
}

// userTime is the seconds that the process has computed.
func userTime(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()) / 1e9
}
