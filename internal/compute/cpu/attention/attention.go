package attention

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// Args are the properties of an attention layer.
type Args = compute.AttentionArgs

const (
	// maxQueries is how many queries share one pass over a head's keys and values at most.
	maxQueries = 24
	// serialCost is how many positions times dimensions times query heads are worth handing to
	// another thread.
	serialCost = 1 << 16
	// mostCost is what a chunk costs at most: each position has a score and a value of each
	// dimension.
	mostCost = pool.MostWork / 2
	// chunksPerThread leaves room to balance chunks of unequal cost.
	chunksPerThread = 8
)

// Attention computes attention and owns the scratch memory for it, which grows to the longest
// context seen and is then reused. One Run at a time.
type Attention struct {
	ops     *vec.Ops
	simd    [compute.Float32 + 1]*kernels // nil for the portable kernels
	scratch []*scratch                    // of each thread
	job     job
}

// New returns an Attention for the instruction set i, or a portable one if this machine cannot run
// it. Sets above AVX2 use the AVX2 kernels, so their results are equal.
func New(i isa.ISA) *Attention {
	a := &Attention{ops: vec.New(i)}
	if i >= isa.AVX2 && isa.Available(isa.AVX2) {
		for k := range a.simd {
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

// chunk is a number of consecutive groups, from one on: segment by segment, head by head, group of
// rows by group.
type chunk struct {
	seg, head, group int
	groups           int
}

// job is one Run, as the pool sees it.
type job struct {
	a     *Attention
	c     *Cache
	layer int
	b     *compute.Batch
	args  Args

	dst, q   []float32
	ldd, ldq int

	queries  int // query heads of a key/value head
	rows     int // rows of a group
	segments []segment
	chunks   []chunk
}

// Run computes attention of the batch's rows over the layer's keys and values, which must have been
// written before: causal but for Args.Ahead. Row r of q is q[r*ldq:], Heads head vectors of HeadDim
// values each; the result goes to dst[r*ldd:] in the same layout. dst may be q.
//
// Run panics, as an index out of range would, if a shape does not fit the cache, a slice is too
// short, or a position lies in a block its sequence's table lacks.
func (a *Attention) Run(p *pool.Pool, c *Cache, layer int, b *compute.Batch, args Args,
	dst []float32, ldd int, q []float32, ldq int) {
	if b.Rows() == 0 {
		return
	}
	j := &a.job
	j.c, j.layer, j.b, j.args = c, layer, b, args
	j.dst, j.ldd, j.q, j.ldq = dst, ldd, q, ldq
	if err := j.check(); err != nil {
		panic(err)
	}
	for len(a.scratch) < p.Threads() {
		a.scratch = append(a.scratch, new(scratch))
	}
	j.plan(p.Threads())
	p.Run(j, len(j.chunks))
	// Keep no reference to the caller's memory.
	j.c, j.b, j.dst, j.q = nil, nil, nil, nil
}

func (j *job) check() error {
	cfg, a, b := &j.c.cfg, &j.args, j.b
	width := a.Heads * a.HeadDim
	switch {
	case j.c.data == nil:
		return errFreed
	case j.layer < 0 || j.layer >= cfg.Layers:
		return fmt.Errorf("attention: layer %d of a kv cache of %d", j.layer, cfg.Layers)
	case a.KVHeads != cfg.KVHeads || a.HeadDim != cfg.HeadDim:
		return fmt.Errorf("attention: %d heads of dimension %d over a kv cache of %d of "+
			"dimension %d", a.KVHeads, a.HeadDim, cfg.KVHeads, cfg.HeadDim)
	case a.Heads < 1 || a.Heads%a.KVHeads != 0:
		return fmt.Errorf("attention: %d query heads do not share %d key/value heads evenly",
			a.Heads, a.KVHeads)
	case len(b.Seq) < b.Rows():
		return fmt.Errorf("attention: %d rows with %d positions and %d sequences",
			b.Rows(), len(b.Position), len(b.Seq))
	case j.ldq < width || j.ldd < width ||
		len(j.q) < (b.Rows()-1)*j.ldq+width || len(j.dst) < (b.Rows()-1)*j.ldd+width:
		return fmt.Errorf("attention: %d rows of %d values do not fit q (%d by %d) and dst (%d "+
			"by %d)", b.Rows(), width, len(j.q), j.ldq, len(j.dst), j.ldd)
	}
	for r, p := range b.Position {
		s := int(b.Seq[r])
		if s < 0 || s >= len(b.Tables) || p < 0 || int(p)/cfg.BlockSize >= len(b.Tables[s]) {
			return fmt.Errorf("attention: row %d at position %d of sequence %d: no block table "+
				"reaches it", r, p, s)
		}
	}
	return nil
}

// from is the first position a row at position pos attends to.
func (j *job) from(pos int) int {
	if j.args.Window <= 0 {
		return 0
	}
	return max(0, pos-j.args.Window+1)
}

// until is the position after the last one that a row at position pos of a segment attends to.
func (j *job) until(s *segment, pos int) int { return min(pos+1+j.args.Ahead, s.end()) }

// plan cuts the batch into segments and these into chunks of similar cost.
func (j *job) plan(threads int) {
	b := j.b
	j.queries = j.args.Heads / j.args.KVHeads
	j.rows = rowsPerGroup(j.queries)
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
	total := 0
	for si := range j.segments {
		s := &j.segments[si]
		for pos := s.pos; pos < s.end(); pos++ {
			total += j.until(s, pos) - j.from(pos)
		}
	}
	perPosition := j.queries * j.args.HeadDim
	total *= perPosition * j.args.KVHeads
	target := min(total, mostCost)
	if threads > 1 && total > serialCost {
		target = max(serialCost/2, min(target, total/(threads*chunksPerThread)))
	}
	j.chunks = append(j.chunks[:0], chunk{})
	cost := 0
	for si := range j.segments {
		s := &j.segments[si]
		groups := (s.rows + j.rows - 1) / j.rows
		if target == total {
			j.chunks[0].groups += groups * j.args.KVHeads
			continue
		}
		for h := range j.args.KVHeads {
			for g := range groups {
				if cost >= target {
					j.chunks = append(j.chunks, chunk{seg: si, head: h, group: g})
					cost = 0
				}
				j.chunks[len(j.chunks)-1].groups++
				rows := min(j.rows, s.rows-g*j.rows)
				last := s.pos + g*j.rows + rows - 1
				cost += (j.until(s, last) - j.from(last)) * rows * perPosition
			}
		}
	}
}

// rowsPerGroup is how many rows of a segment are computed together: as many as fill the kernels for
// six queries.
func rowsPerGroup(queries int) int {
	for rows := 1; rows*queries <= maxQueries && rows <= 6; rows++ {
		if rows*queries%6 == 0 {
			return rows
		}
	}
	return max(1, 12/queries)
}

// Do computes the groups of one chunk.
func (j *job) Do(i, thread int) {
	s := j.a.scratch[thread]
	at := j.chunks[i]
	mapped := -1
	for range at.groups {
		seg := &j.segments[at.seg]
		if mapped != at.seg {
			s.mapTiles(j, seg)
			mapped = at.seg
		}
		first := at.group * j.rows
		s.group(j, seg, at.head, first, min(j.rows, seg.rows-first))
		at.group++
		if at.group*j.rows < seg.rows {
			continue
		}
		at.group = 0
		at.head++
		if at.head == j.args.KVHeads {
			at.head = 0
			at.seg++
		}
	}
}
