package attention

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// Args are the properties of an attention layer.
type Args struct {
	// Heads and KVHeads are the numbers of query and of key/value heads; query head h reads
	// key/value head h/(Heads/KVHeads).
	Heads, KVHeads int
	// HeadDim is the dimension of a head's query and key.
	HeadDim int
	// Scale multiplies the scores, commonly 1/sqrt(HeadDim).
	Scale float32
	// Window, if positive, limits a row at position p to the positions p-Window+1 to p
	// (sliding-window attention), with Chunked to those from the last multiple of Window on.
	Window  int
	Chunked bool
	// Ahead is how many positions after its own a row attends to, as far as the batch has rows of
	// its sequence. Where it is positive, the batch has all of them.
	Ahead int
	// Cap, if positive, makes each scaled score s Cap·tanh(s/Cap) before the softmax.
	Cap float32
	// Sinks, unless nil, is a logit for each query head that takes part in its softmax as the score
	// of one more position would, with a value of zero (gpt-oss: transformers, gpt_oss,
	// eager_attention_forward). It is neither scaled nor capped.
	Sinks []float32
}

const (
	// maxQueries is how many queries share one pass over the keys and values of a stretch at most,
	// latentQueries where the values are longer.
	maxQueries    = 48
	latentQueries = 24
	// groupQueries is how many queries a group of several passes has at most.
	groupQueries = 24
	// serialCost is how many positions times dimensions times query heads are worth handing to
	// another thread.
	serialCost = 1 << 16
	// mostCost is what a chunk costs at most: each position has a score and a value of each
	// dimension.
	mostCost = pool.MostWork / 2
	// leastShared is how many query heads of a key/value head a thread computes at least.
	leastShared = 4
	// chunksPerThread leaves room to balance chunks of unequal cost.
	chunksPerThread = 8
	// mostStored is how many float32 values the stretches that threads share have for each thread
	// at most.
	mostStored = 1 << 18
)

// Attention computes attention and owns the scratch memory for it, which grows to the largest heads
// seen and is then reused. One Run at a time.
type Attention struct {
	ops     *vec.Ops
	simd    [compute.E4M3 + 1]*kernels // nil for the portable kernels
	filled  int                        // queries of the largest kernels
	tiles   bool                       // there is AMX
	ordered [compute.E4M3 + 1]*ordered // then, of the kinds that tiles take
	scratch []*scratch                 // of each thread
	job     job
}

// New returns an Attention for the instruction set i, or a portable one if this machine cannot run
// it. The results of AVX2 and of the sets above it are equal, but for those of bfloat16 on AMX.
func New(i isa.ISA) *Attention {
	a := &Attention{ops: vec.New(i), filled: 6, tiles: i == isa.AMX && isa.Available(isa.AMX)}
	for k := range a.simd {
		if a.tiles {
			a.ordered[k] = orderedKernels(compute.DType(k))
		}
		switch {
		case i >= isa.AVX512 && isa.Available(isa.AVX512):
			a.simd[k], a.filled = avx512Kernels(compute.DType(k)), 12
		case i >= isa.AVX2 && isa.Available(isa.AVX2):
			a.simd[k] = avx2Kernels(compute.DType(k))
		}
	}
	a.job.a = a
	return a
}

// segment is a run of rows of one sequence at consecutive positions.
type segment struct {
	row, rows int
	seq       int
	pos       int // of the first row
}

// end is the position after the last row's.
func (s *segment) end() int { return s.pos + s.rows }

// chunk is a number of consecutive parts of groups, from one on: segment by segment, head by head,
// group by group, part by part. The accumulators of a group of several parts lie at stored.
type chunk struct {
	seg, head, group, part int
	parts                  int
	stored                 int
}

// job is one Run, as the pool sees it.
type job struct {
	a      *Attention
	c      *Cache
	p      *place // of the layer
	b      *compute.Batch
	tables [][]int32 // of the layer's group
	args   Args

	dst, q   []float32
	ldd, ldq int

	heads    int // key/value heads, cut in 1<<cut parts of their query heads each (see plan)
	cut      int
	queries  int // query heads of each part
	pass     int // queries that a pass takes
	rows     int // rows of a group
	part     int // stretches of a part of a group
	segments []segment
	chunks   []chunk
	joins    []chunk   // the groups of several parts
	stored   []float32 // their accumulators
}

// Run computes attention of the batch's rows over the layer's keys and values, which must have been
// written before: causal but for Args.Ahead. Row r of q is q[r*ldq:], Heads head vectors of HeadDim
// values each; the result goes to dst[r*ldd:], as many vectors of the dimension of the layer's
// values. dst may be q where that is HeadDim.
//
// Run panics, as an index out of range would, if a shape does not fit the cache, a slice is too
// short, or a position lies in a block its sequence's table lacks.
func (a *Attention) Run(p *pool.Pool, c *Cache, layer int, b *compute.Batch, args Args,
	dst []float32, ldd int, q []float32, ldq int) {
	if b.Rows() == 0 {
		return
	}
	j := &a.job
	j.c, j.b, j.args = c, b, args
	j.dst, j.ldd, j.q, j.ldq = dst, ldd, q, ldq
	if err := j.check(layer); err != nil {
		panic(err)
	}
	for len(a.scratch) < p.Threads() {
		a.scratch = append(a.scratch, new(scratch))
	}
	j.plan(p.Threads())
	p.Run(j, len(j.chunks))
	if len(j.joins) > 0 {
		p.Run((*joining)(j), len(j.joins))
	}
	// Keep no reference to the caller's memory.
	j.c, j.p, j.b, j.tables, j.dst, j.q, j.args.Sinks = nil, nil, nil, nil, nil, nil, nil
}

// check checks what Run was called with, and finds the layer's place.
func (j *job) check(layer int) error {
	if j.c.data == nil {
		return errFreed
	}
	if layer < 0 || layer >= len(j.c.layers) {
		return fmt.Errorf("attention: layer %d of a kv cache of %d", layer, len(j.c.layers))
	}
	j.p = &j.c.layers[layer]
	j.tables = j.b.TablesOf(j.p.Group)
	cfg, a, b := &j.c.cfg, &j.args, j.b
	width, out := a.Heads*a.HeadDim, a.Heads*j.p.ValueDim()
	switch {
	case a.KVHeads != j.p.Heads || a.HeadDim != j.p.Dim:
		return fmt.Errorf("attention: %d heads of dimension %d over a kv cache of %v", a.KVHeads,
			a.HeadDim, j.p.CacheLayer)
	case j.p.Window > 0 && (a.Window <= 0 || a.Window > j.p.Window):
		return fmt.Errorf("attention: a window of %d over a kv cache of %v", a.Window,
			j.p.CacheLayer)
	case a.Heads < 1 || a.Heads%a.KVHeads != 0:
		return fmt.Errorf("attention: %d query heads do not share %d key/value heads evenly",
			a.Heads, a.KVHeads)
	case a.Sinks != nil && len(a.Sinks) != a.Heads:
		return fmt.Errorf("attention: %d sinks for %d query heads", len(a.Sinks), a.Heads)
	case len(b.Seq) < b.Rows():
		return fmt.Errorf("attention: %d rows with %d positions and %d sequences",
			b.Rows(), len(b.Position), len(b.Seq))
	case j.ldq < width || j.ldd < out ||
		len(j.q) < (b.Rows()-1)*j.ldq+width || len(j.dst) < (b.Rows()-1)*j.ldd+out:
		return fmt.Errorf("attention: %d rows of %d values do not fit q (%d by %d), or those of "+
			"%d dst (%d by %d)", b.Rows(), width, len(j.q), j.ldq, out, len(j.dst), j.ldd)
	}
	for r, p := range b.Position {
		s := int(b.Seq[r])
		if s < 0 || s >= len(j.tables) || p < 0 || int(p)/cfg.BlockSize >= len(j.tables[s]) {
			return fmt.Errorf("attention: row %d at position %d of sequence %d: no block table "+
				"reaches it", r, p, s)
		}
	}
	return nil
}

// from is the first position a row at position pos attends to.
func (j *job) from(pos int) int {
	switch {
	case j.args.Window <= 0:
		return 0
	case j.args.Chunked:
		return pos / j.args.Window * j.args.Window
	}
	return max(0, pos-j.args.Window+1)
}

// until is the position after the last one that a row at position pos of a segment attends to.
func (j *job) until(s *segment, pos int) int { return min(pos+1+j.args.Ahead, s.end()) }

// plan cuts the batch into segments and these into chunks of similar cost.
func (j *job) plan(threads int) {
	b := j.b
	j.segments = j.segments[:0]
	for r := range b.Rows() {
		pos := int(b.Position[r])
		if n := len(j.segments); n > 0 {
			if s := &j.segments[n-1]; s.seq == int(b.Seq[r]) && s.pos+s.rows == pos {
				s.rows++
				continue
			}
		}
		j.segments = append(j.segments, segment{row: r, rows: 1, seq: int(b.Seq[r]), pos: pos})
	}
	total, longest := 0, 0
	for si := range j.segments {
		s := &j.segments[si]
		for pos := s.pos; pos < s.end(); pos++ {
			total += j.until(s, pos) - j.from(pos)
			longest = max(longest, j.until(s, pos)-j.from(pos))
		}
	}
	total *= j.args.Heads * j.args.HeadDim
	j.heads, j.cut = j.args.KVHeads, 0
	j.queries = j.args.Heads / j.heads
	shared := threads > 1 && total > serialCost
	if shared {
		// Threads that would have nothing to do share the query heads of a key/value head, unless
		// there are stretches to share.
		for b.Rows()*j.heads*(1+longest/stretch) < threads && j.queries%2 == 0 &&
			j.queries >= 2*leastShared {
			j.heads, j.cut, j.queries = 2*j.heads, j.cut+1, j.queries/2
		}
	}
	j.rows = rowsPerPass(j.queries, j.a.filled)
	pass, most := min(j.rows*j.queries, maxQueries), groupQueries
	switch {
	case j.tiled():
		j.rows, pass, most = max(1, amx.Block/j.queries), blockQueries, tileQueries
	case j.p.Kind == compute.Latent:
		pass = min(pass, latentQueries)
	}
	j.part = math.MaxInt
	target := min(total, mostCost)
	// The more passes share a stretch the better, as long as there are groups for all threads.
	for more := 2 * j.rows; more*j.queries <= most && (!shared ||
		b.Rows()*j.heads >= threads*chunksPerThread*more); more *= 2 {
		j.rows = more
	}
	j.pass = min(j.rows*j.queries, pass)
	if shared {
		target = max(serialCost/2, min(target, total/(threads*chunksPerThread)))
		// Threads share the stretches of a group that is too much for one of them.
		perPosition := min(j.rows, b.Rows()) * j.queries * j.args.HeadDim
		if longest*perPosition > total/(2*threads) {
			j.part = max(1, target/(stretch*perPosition))
		}
	}
	stored := j.cutChunks(target, total)
	if stored > mostStored*threads {
		j.part = math.MaxInt
		stored = j.cutChunks(target, total)
	}
	j.stored = grow(j.stored, stored)
}

// cutChunks makes chunks of a cost of target, lists the groups of several parts, and returns how
// many values their accumulators have.
func (j *job) cutChunks(target, total int) (stored int) {
	j.chunks, j.joins = append(j.chunks[:0], chunk{}), j.joins[:0]
	cost := 0
	for si := range j.segments {
		s := &j.segments[si]
		groups := (s.rows + j.rows - 1) / j.rows
		if target >= total {
			j.chunks[0].parts += groups * j.heads
			continue
		}
		for h := range j.heads {
			for n := range groups {
				g := j.group(si, h, n)
				parts, length := j.parts(&g)
				if parts > 1 {
					j.joins = append(j.joins, chunk{seg: si, head: h, group: n, stored: stored})
				}
				last := g.pos(j, g.n-1)
				all := (j.until(s, last) - j.from(last)) * g.n * j.args.HeadDim
				for k := range parts {
					if cost >= target {
						j.chunks = append(j.chunks, chunk{seg: si, head: h, group: n, part: k,
							stored: stored})
						cost = 0
					}
					j.chunks[len(j.chunks)-1].parts++
					cost += all / parts
				}
				stored += length
			}
		}
	}
	return stored
}

// group is the n-th group of rows of a segment, for one of job.heads.
func (j *job) group(seg, head, n int) group {
	s, first := &j.segments[seg], n*j.rows
	return group{seg: s, head: head, first: first, n: min(j.rows, s.rows-first) * j.queries}
}

// parts is how many parts a group has, and how many values its accumulators where it has several.
func (j *job) parts(g *group) (parts, stored int) {
	from, until := g.stretches(j)
	if parts = (until-from-1)/j.part + 1; parts > 1 {
		stored = (until - from) * g.n * j.width()
	}
	return parts, stored
}

// rowsPerPass is how many rows of a segment are computed together: as many as fill the kernels that
// take most queries.
func rowsPerPass(queries, filled int) int {
	for rows := 1; rows*queries <= maxQueries && rows <= filled; rows++ {
		if rows*queries%filled == 0 {
			return rows
		}
	}
	return max(1, 12/queries)
}

// Do computes the parts of one chunk.
func (j *job) Do(i, thread int) {
	s := j.a.scratch[thread]
	s.mapped = -1
	for at, left := j.chunks[i], j.chunks[i].parts; left > 0; left-- {
		g := j.group(at.seg, at.head, at.group)
		if parts, _ := j.parts(&g); parts == 1 {
			s.group(j, at.seg, &g)
		} else {
			from, until := g.stretches(j)
			begin := from + at.part*j.part
			s.stretches(j, at.seg, &g, begin, min(begin+j.part, until),
				j.stored[at.stored+(begin-from)*g.n*j.width():])
		}
		at.next(j, &g)
	}
}

// next moves a chunk to the part after its first, which belongs to group g.
func (c *chunk) next(j *job, g *group) {
	parts, stored := j.parts(g)
	if c.part++; c.part < parts {
		return
	}
	c.part = 0
	c.stored += stored
	if c.group++; c.group*j.rows < g.seg.rows {
		return
	}
	c.group = 0
	if c.head++; c.head < j.heads {
		return
	}
	c.head = 0
	c.seg++
}

// joining is a job whose stretches are computed.
type joining job

// Do joins the stretches of one group.
func (t *joining) Do(i, thread int) {
	j := (*job)(t)
	at := &j.joins[i]
	g := j.group(at.seg, at.head, at.group)
	j.a.scratch[thread].joinAll(j, &g, j.stored[at.stored:])
}
