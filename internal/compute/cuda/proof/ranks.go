package proof

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// rankKernels are those of several ranks that sum, placeKernels those of several places.
var (
	rankKernels  = []kernels.ID{kernels.SumRanks, kernels.GatherRanks, kernels.NormRanks}
	placeKernels = []kernels.ID{kernels.GatherRows, kernels.ScatterSums, kernels.AddShares}
)

// OfRanks says whether only cases with Options.Together are about a kernel.
func OfRanks(k kernels.ID) bool {
	return slices.Contains(rankKernels, k) || slices.Contains(placeKernels, k)
}

// rankShape is how many ranks sum how often, tensors of so many rows and columns, and columns of
// those that they normalise.
type rankShape struct {
	ranks, rounds, rows, width, normed int
	cost                               Cost
}

// The shapes have tails, one block and several, several rows of a block, and more than one launch.
var rankShapes = []rankShape{
	{2, 5, 3, 771, 300, Small}, {4, 4, 1, 5000, 2052, Full}, {8, 4, 2, 52, 52, Full},
	{2, 3, 130, 4100, 260, Full}, {2, 1, 1, 4, 22000, Full},
}

func rankCases() (list []Case) {
	for _, p := range rankShapes {
		list = append(list, Case{Name: fmt.Sprintf("%d ranks, %d x %d", p.ranks, p.rows, p.width),
			Kernels: rankKernels, cost: p.cost, ranks: p.ranks,
			run: func(s *subject) { s.together(p.ranks, (*cuda.Device).NewComm, p.sum) }},
			Case{Name: fmt.Sprintf("%d places, %d x %d", p.ranks, p.rows, p.width),
				Kernels: placeKernels, cost: p.cost, ranks: p.ranks, run: func(s *subject) {
					s.together(p.ranks, (*cuda.Device).NewPlaces, p.visits)
				}})
	}
	return list
}

// hosts is ranks of this process without devices: what AllGather needs of a group.
type hosts struct {
	mu    sync.Mutex
	met   *sync.Cond
	parts [][]float32
	here  int
	round int
	over  chan struct{} // closed when a rank has failed
	fail  sync.Once
}

func newHosts(size int) *hosts {
	h := &hosts{parts: make([][]float32, size), over: make(chan struct{})}
	h.met = sync.NewCond(&h.mu)
	return h
}

// abort ends every wait.
func (h *hosts) abort() {
	h.fail.Do(func() { close(h.over) })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.met.Broadcast()
}

func (h *hosts) ended() bool {
	select {
	case <-h.over:
		return true
	default:
		return false
	}
}

var errAborted = errors.New("another rank has failed")

// place is a rank's among hosts.
type place struct {
	*hosts
	rank int
}

// AllGather implements cuda.HostGroup.
func (p place) AllGather(dst, x []float32) error {
	h := p.hosts
	h.mu.Lock()
	defer h.mu.Unlock()
	meet := func() error {
		h.here++
		if h.here == len(h.parts) {
			h.here = 0
			h.round++
			h.met.Broadcast()
			return nil
		}
		for at := h.round; at == h.round && !h.ended(); {
			h.met.Wait()
		}
		if h.ended() {
			return errAborted
		}
		return nil
	}
	h.parts[p.rank] = x
	if err := meet(); err != nil {
		return err
	}
	for r, part := range h.parts {
		copy(dst[r*len(x):], part)
	}
	return meet() // until all have read
}

// AllToAll implements cuda.HostGroup, where all give each other as much.
func (p place) AllToAll(dst, x []float32, counts, _ []int) error {
	all := make([]float32, len(counts)*len(x))
	if err := p.AllGather(all, x); err != nil {
		return err
	}
	for r, n := range counts {
		copy(dst[r*n:(r+1)*n], all[r*len(x)+p.rank*n:])
	}
	return nil
}

// member is a rank at work.
type member struct {
	*subject
	comm *cuda.Comm
	rank int
	// hosts is comm through hosts.
	hosts *cuda.Comm
}

// way makes a rank's way to others.
type way func(d *cuda.Device, rank, size int, host cuda.HostComm, group cuda.HostGroup) *cuda.Comm

// together runs ranks, of which the subject's device is the first. The first error of any of them
// is the subject's.
func (s *subject) together(ranks int, by way, run func(m *member) error) {
	h := newHosts(ranks)
	var mu sync.Mutex
	var others sync.WaitGroup
	member := func(rank int, own *subject) {
		err := own.beside(h, rank, by, run)
		if err == nil {
			return
		}
		h.abort()
		mu.Lock()
		defer mu.Unlock()
		if s.err == nil || errors.Is(s.err, errAborted) || errors.Is(s.err, compute.ErrEnded) {
			s.err = fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	for r := 1; r < ranks; r++ {
		others.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			opt := s.opt
			if !opt.Together {
				opt.Ordinal = r
			}
			d, err := open(opt, s.dtype)
			if err != nil {
				h.abort()
				return
			}
			defer d.Close()
			member(r, &subject{Device: d, dtype: s.dtype, opt: opt})
		})
	}
	member(0, s)
	others.Wait()
}

// beside is one rank.
func (s *subject) beside(h *hosts, rank int, by way, run func(m *member) error) error {
	ranks, group := len(h.parts), place{h, rank}
	m := &member{subject: s, comm: by(s.Device, rank, ranks, noHost{}, group), rank: rank,
		hosts: by(s.Device, rank, ranks, noHost{}, group)} // which is not connected
	defer m.comm.Leave()
	if err := m.comm.Connect(h.over); err != nil {
		return err
	}
	if way := m.comm.Way(); !strings.HasPrefix(way, s.opt.way()) {
		return errors.New(way)
	}
	if err := run(m); err != nil {
		return err
	}
	return s.Finish()
}

// way is how ranks sum, as Comm.Way begins.
func (o *Options) way() string {
	if o.NCCL.Open != nil {
		return "by NCCL "
	}
	return "over peer memory"
}

// noHost has no way through the host.
type noHost struct{}

var errNoHost = errors.New("numbers do not go through the host here")

func (noHost) AllReduce(*compute.Tensor) error          { return errNoHost }
func (noHost) Gather(_, _ *compute.Tensor, _ int) error { return errNoHost }

// sum adds tensors of all ranks, products in chunks among them, and gathers what they were. All
// numbers are small and whole: sums are exact, whatever their order, which other tests are about.
func (p rankShape) sum(m *member) error {
	n := p.rows * p.width
	number := func(round, rank, i int) float32 {
		return float32((i%61)*(rank+1) + 1000*round + rank)
	}
	var x, all compute.Tensor
	for round := range p.rounds {
		m.Resize(&x, p.rows, p.width)
		v := x.Floats()
		for i := range v {
			v[i] = number(round, m.rank, i)
		}
		x.Memory.Filled()
		var to *compute.Tensor
		if m.rank == 0 {
			m.Resize(&all, p.ranks*p.rows, p.width)
			to = &all
		}
		// One after the other, so that a rank may be ahead; gathering falls on both places of a
		// window.
		for range 1 + round%2 {
			if err := m.comm.Gather(to, &x, 0); err != nil {
				return err
			}
		}
		if err := m.comm.AllReduce(&x); err != nil {
			return err
		}
		if err := m.Finish(); err != nil {
			return err
		}
		wantSum, wantAll := make([]float64, n), make([]float64, 0, p.ranks*n)
		for r := range p.ranks {
			for i := range n {
				one := float64(number(round, r, i))
				wantSum[i] += one
				wantAll = append(wantAll, one)
			}
		}
		if m.rank > 0 {
			if !slices.Equal(doubles(x.Floats()), wantSum) {
				return fmt.Errorf("sum %d of rank %d is not that of all", round, m.rank)
			}
			continue
		}
		m.report(fmt.Sprintf("sum %d", round), x.Floats(), wantSum, exactly)
		m.report(fmt.Sprintf("gathered %d", round), all.Floats(), wantAll, exactly)
	}
	if err := m.chunked(p); err != nil {
		return err
	}
	if err := m.wholeExperts(p); err != nil {
		return err
	}
	return m.normalised(p)
}

// normalised adds sums over the ranks to a tensor and normalises that, or the sums alone: both have
// the bits that one call after the other makes.
func (m *member) normalised(p rankShape) error {
	const eps = 1e-5
	rows, width := p.rows, p.normed
	n := rows * width
	number := func(i int) float32 { return 1 + float32(i*37%113)/64 }
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = number(i + m.rank)
	}
	weights := make([]float32, width)
	for i := range weights {
		weights[i] = number(i)
	}
	weight := m.Vector(weights)
	var x, y compute.Tensor
	residual, plain := m.filled(rows, width, numbers), m.filled(rows, width, numbers)
	want, total := doubles(numbers), make([]float64, n)
	for i := range total {
		for r := range p.ranks {
			total[i] += float64(number(i + r))
		}
	}
	for round := range p.rounds {
		var got, bits [2][]float32
		for k, to := range []*compute.Tensor{residual, plain, residual, plain} {
			added, apart := k < 2, k%2 == 1
			if !added {
				to = &x
			}
			m.Resize(&x, rows, width)
			copy(x.Floats(), numbers)
			x.Memory.Filled()
			err := m.comm.AllReduce(&x)
			if apart && err == nil {
				err = m.Finish()
			}
			if err != nil {
				return err
			}
			if added {
				m.Add(to, &x)
			}
			if apart {
				if err := m.Finish(); err != nil {
					return err
				}
			}
			m.RMSNorm(&y, to, weight, eps)
			if k == 0 && m.rank == 0 && width <= mostIdentity {
				m.halves(fmt.Sprintf("normalised %d", round), &y)
			}
			all := slices.Concat(to.Floats(), y.Floats(), x.Floats())
			if apart {
				bits[k/2] = all
			} else {
				got[k/2] = all
			}
		}
		for i, v := range total {
			want[i] += v
		}
		for k, name := range []string{"added", "alone"} {
			if !slices.Equal(got[k], bits[k]) {
				return fmt.Errorf("round %d of rank %d: sums %s and normalised differ from "+
					"what is made of them apart", round, m.rank, name)
			}
		}
		if m.rank == 0 {
			m.report(fmt.Sprintf("normalised %d", round), got[0][n:2*n],
				normalised(want, weights, eps), sums)
			m.report(fmt.Sprintf("alone %d", round), got[1][n:2*n],
				normalised(total, weights, eps), sums)
		}
	}
	m.free()
	return m.Finish()
}

// chunked sums a product over the chunks of all ranks.
func (m *member) chunked(p rankShape) error {
	const rows, out, in = 3, 36, 32
	weight := make([]uint16, out*in)
	for i := range weight {
		weight[i] = 0x3f80 // 1 in bfloat16
	}
	w := m.pack(8/p.ranks, matrix(weight, out, in))
	if m.err != nil {
		return m.err
	}
	v := make([]float32, rows*in)
	want := make([]float64, rows*out)
	for i := range v {
		v[i] = float32(i%3 + m.rank)
		for f := range out {
			for r := range p.ranks {
				want[i/in*out+f] += float64(i%3 + r)
			}
		}
	}
	x := m.filled(rows, in, v)
	var y compute.Tensor
	m.Resize(&y, rows, out)
	w.Product(y.All(), x.All(), nil)
	if err := m.comm.AllReduce(&y); err != nil {
		return err
	}
	got := y.Floats()
	if err := m.Finish(); err != nil {
		return err
	}
	if m.rank == 0 {
		m.report("chunks", got, want, exactly)
	} else if !slices.Equal(doubles(got), want) {
		return fmt.Errorf("the chunks of rank %d do not sum to those of all", m.rank)
	}
	m.free()
	return nil
}

// wholeExperts has ranks that hold whole experts, some of them two of a copy, add what they make of
// rows: sums, and what is normalised of them, have the bits of a rank that has all experts.
func (m *member) wholeExperts(p rankShape) error {
	const inner, perToken = 16, 2
	rows, hidden, experts := p.rows, min(p.width, 320)/4*4, 2*p.ranks
	m.random = rand.New(rand.NewPCG(7, 8))
	routing := compute.Routing{PerToken: perToken, Normalise: true}
	all := &compute.Mixture{Routing: routing, Chunks: 8}
	for range experts {
		var e compute.Expert
		e.GateUp, _ = m.weight(1, 2*inner, hidden)
		e.Down, _ = m.weight(8, hidden, inner)
		all.Experts = append(all.Experts, e)
	}
	if m.err != nil {
		return m.err
	}
	own := &compute.Mixture{Routing: routing, Chunks: 8,
		Held:    m.held(experts, p.ranks, m.rank),
		Experts: heldOf(all.Experts, p.ranks, m.rank)}
	x, _ := m.tensor(rows, hidden)
	_, before := m.tensor(rows, hidden)
	scores := m.floats(rows * experts)
	weight, _ := m.vector(hidden)
	_, step, _ := layOut([]sequence{{5, rows}})
	var made [2][]float32
	for k, mix := range []*compute.Mixture{all, own} {
		m.Begin(step, nil)
		sum, y, residual := m.poisoned(rows, hidden), m.poisoned(rows, hidden),
			m.filled(rows, hidden, before)
		m.Mix(sum, x, m.filled(rows, experts, scores), mix)
		if mix.Held != nil {
			if err := m.comm.AllReduce(sum); err != nil {
				return err
			}
		}
		m.Mixed(sum, mix)
		m.Add(residual, sum)
		m.RMSNorm(y, residual, weight, 1e-5)
		made[k] = slices.Concat(sum.Floats(), residual.Floats(), y.Floats())
		if err := m.Finish(); err != nil {
			return err
		}
	}
	if !slices.Equal(made[0], made[1]) {
		return errors.New("what ranks with whole experts make differs from what one makes")
	}
	m.free()
	return nil
}

// visits has ranks gather each other's rows, of which they have different numbers, and scatter sums
// of them in fixed point, by their devices and through hosts: no sum depends on the order of ranks.
func (p rankShape) visits(m *member) error {
	var x, all, parts, y compute.Tensor
	weight := make([]uint16, seers*p.width)
	for i := range weight {
		weight[i] = half.ToBF16(seen(i/p.width, i%p.width))
	}
	w := m.pack(1, matrix(weight, seers, p.width))
	if m.err != nil {
		return m.err
	}
	rounds, ways := p.rounds+1, []*cuda.Comm{m.comm, m.hosts}
	if p.rows*p.width > 100_000 { // as much of it is computed again and again
		rounds, ways = 1, ways[:1]
	}
	for round := range rounds {
		counts := make([]int32, p.ranks)
		for r := range counts {
			counts[r] = int32((p.rows*(1+r+round) + round) % (p.rows + 1))
		}
		counts[round%p.ranks] = int32(p.rows)
		own := int(counts[m.rank])
		_, step, _ := layOut([]sequence{{0, p.rows}})
		step.Split.Places = counts
		m.Begin(step, nil)
		m.Resize(&x, own, p.width)
		for i := range x.Floats() {
			x.Floats()[i] = visiting(m.rank, i/p.width, i%p.width)
		}
		x.Memory.Filled()
		for _, c := range ways {
			if err := c.GatherRows(&all, &x, p.width); err != nil {
				return err
			}
			room := all.Rows / p.ranks
			m.Resize(&y, all.Rows, seers)
			w.Product(y.All(), all.All(), nil)
			var got []float32
			var want []float64
			for r, n := range counts {
				for i := range int(n) * seers {
					row, feature, sum := i/seers, i%seers, float32(0)
					for c := range p.width {
						sum += visiting(r, row, c) * seen(feature, c)
					}
					got = append(got, y.Floats()[(r*room+row)*seers+feature])
					want = append(want, float64(sum))
				}
			}
			if err := m.same(fmt.Sprintf("rows %d", round), got, want); err != nil {
				return err
			}
			if err := m.scattered(c, &parts, &y, room, p, own, round%2 == 0); err != nil {
				return err
			}
		}
	}
	m.free()
	return m.Finish()
}

// seers are the features of a product that sees gathered rows, seen what it multiplies a column by.
const seers = 8

func seen(feature, i int) float32 { return float32(i * (feature + 3) % 5) }

// visiting are numbers of rows that sums and 16 bits have exactly.
func visiting(rank, row, i int) float32 { return float32((1 + row*7 + i%50 + 100*rank) % 251) }

// scattered scatters sums of which each rank has a part, cut or whole.
func (m *member) scattered(c *cuda.Comm, parts, y *compute.Tensor, room int, p rankShape, own int,
	cut bool) error {
	// part is what a rank makes of a row of another one.
	part := func(by, of, i int) (high, low float32) {
		high = float32((i*37+by*11+of)%20001-10000) / 256
		return high, float32((i*53+by*29+of*3)%4194304-2097152) / (1 << 30)
	}
	size := room * p.width
	m.Resize(parts, 2*p.ranks*room, p.width)
	v := parts.Floats()
	for r := range p.ranks {
		for i := range size {
			v[2*r*size+i], v[(2*r+1)*size+i] = part(m.rank, r, i)
		}
	}
	parts.Memory.Filled()
	rows := min(own+1, room) // one more, to fill the step up
	if err := c.ScatterSums(y, parts, rows, cut); err != nil {
		return err
	}
	got, want := make([]float32, own*p.width), make([]float64, own*p.width)
	for i := range got {
		for r := range p.ranks {
			high, low := part(r, m.rank, i)
			want[i] += float64(high) + float64(low)
		}
		got[i], want[i] = y.Floats()[i], float64(float32(want[i]))
		if !cut {
			continue
		}
		low := y.Floats()[rows*p.width+i]
		if got[i] += low; math.Abs(float64(low)) > 1.0/512 {
			return fmt.Errorf("number %d has %g as its low part", i, low)
		}
	}
	return m.same("sums", got, want)
}

// same reports numbers on the first rank, and wants them to be right on the others.
func (m *member) same(name string, got []float32, want []float64) error {
	if err := m.Finish(); err != nil {
		return err // the others wait for this device
	}
	if m.rank == 0 {
		m.report(name, got, want, exactly)
	} else if !slices.Equal(doubles(got), want) {
		return fmt.Errorf("rank %d: %s are not those of all", m.rank, name)
	}
	return nil
}
