package shm

import (
	"encoding/binary"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// run is what a rank has for this one in an all-to-all: elements from and to of its stream, which
// go to an index of the result.
type run struct{ from, to, at int }

// AllToAllV moves a run of elements from every rank to every rank, itself included: x is this
// rank's runs for ranks 0, 1, … one after the other, and counts their lengths, each of which may be
// 0. The result is the ranks' runs for this one, in the order of the ranks, and got their lengths,
// which it need not know before. The result is in the memory of dst if its capacity suffices, else
// in new memory; of dst nothing is read, and x must not overlap it. After an error what is in dst
// is undefined, and the result is empty.
//
// Nothing is called meanwhile: memory needs no time on the way.
func (g *Group) AllToAllV(dst, x []float32, counts, got []int, _ func()) ([]float32, error) {
	into := dst[:0]
	err := g.do(collective.AllToAllV, func() error {
		all, err := g.allToAll(dst, x, counts, collective.Arrivals{Got: got})
		if err == nil {
			into = all
		}
		return err
	})
	return into, err
}

// AllToAll is AllToAllV where this rank knows the lengths of the runs that come: lengths are those,
// and together that of dst. A run of another length is an error that wraps collective.ErrMismatch.
func (g *Group) AllToAll(dst, x []float32, counts, lengths []int) error {
	return g.do(collective.AllToAll, func() error {
		in := collective.Arrivals{Got: lengths, Known: true}
		_, err := g.allToAll(dst, x, counts, in)
		return err
	})
}

func (g *Group) allToAll(dst, x []float32, counts []int, in collective.Arrivals) (_ []float32,
	err error) {
	if err := in.Check(len(dst), counts, g.ranks, len(x)); err != nil {
		return nil, err
	}
	t := collective.Tag(in.Op(), 0, 0)
	for at, longest, first := 0, 0, true; first || at < longest; first = false {
		parity, err := g.enter()
		if err != nil {
			return nil, err
		}
		skip := 0 // of each buffer
		if first {
			skip = g.writeEnds(g.seg.buffer(g.rank, parity), counts)
		}
		own := collective.Floats(g.seg.buffer(g.rank, parity)[skip:])
		g.pack(own, x, counts, at)
		if err := g.publish(parity, t); err != nil {
			return nil, err
		}
		if first {
			if longest, err = g.learn(parity, counts[g.rank], in); err != nil {
				return nil, err
			}
			if dst, err = in.Resize(dst); err != nil {
				return nil, err
			}
			g.place(dst, x, counts, in.Got)
		}
		if err := g.unpack(dst, parity, skip, at, at+len(own)); err != nil {
			return nil, err
		}
		at += len(own)
	}
	return dst, nil
}

// endsBytes is what the ends of a rank's runs take of its first buffer: whole cache lines.
func (g *Group) endsBytes() int { return ((g.ranks-1)*8 + line - 1) / line * line }

// writeEnds writes where in this rank's stream its runs end, in elements, and returns what that
// takes. The stream begins with the run for the next rank, so that ranks read from different ones.
func (g *Group) writeEnds(b []byte, counts []int) int {
	end := 0
	for i := range g.ranks - 1 {
		end += counts[(g.rank+1+i)%g.ranks]
		binary.NativeEndian.PutUint64(b[8*i:], uint64(end))
	}
	return g.endsBytes()
}

// learn waits for all ranks' ends, sets g.runs, and returns the length of the longest stream.
func (g *Group) learn(parity, own int, in collective.Arrivals) (longest int, err error) {
	if err := g.meetAll(parity); err != nil {
		return 0, err
	}
	for p := range g.ranks {
		r, total := g.readEnds(p, parity)
		if p == g.rank {
			r = run{to: own} // which is not in its stream
		}
		if r.from > r.to || r.to > total && p != g.rank || total > collective.MaxExchange {
			return 0, collective.BadRun(r.from, r.to, total, g.names.Of(p))
		}
		if err := in.Add(p, r.to-r.from, g.names); err != nil {
			return 0, err
		}
		g.runs[p] = r
		longest = max(longest, total)
	}
	return longest, nil
}

// readEnds returns where the run for this rank is in another's stream, and how long that is.
func (g *Group) readEnds(p, parity int) (r run, total int) {
	b := g.seg.buffer(p, parity)
	end := func(i int) int {
		return int(min(binary.NativeEndian.Uint64(b[8*i:]), collective.MaxExchange+1))
	}
	if g.ranks == 1 {
		return run{}, 0
	}
	total = end(g.ranks - 2)
	i := (g.rank - p - 1 + g.ranks) % g.ranks
	if p == g.rank {
		return run{}, total
	}
	if i > 0 {
		r.from = end(i - 1)
	}
	r.to = end(i)
	return r, total
}

// place sets where in the result each run begins, and copies this rank's own.
func (g *Group) place(dst, x []float32, counts, got []int) {
	from := 0
	for _, n := range counts[:g.rank] {
		from += n
	}
	at := 0
	for p, n := range got {
		g.runs[p].at = at
		if p == g.rank {
			copy(dst[at:at+n], x[from:])
		}
		at += n
	}
}

// pack copies this rank's stream from an element on into b, as far as that has room.
func (g *Group) pack(b, x []float32, counts []int, at int) {
	start, in := 0, 0 // of a run, in the stream and in x
	for _, n := range counts[:g.rank] {
		in += n
	}
	for i := range g.ranks - 1 {
		in += counts[(g.rank+i)%g.ranks]
		p := (g.rank + 1 + i) % g.ranks
		if p == 0 {
			in = 0
		}
		end := start + counts[p]
		if from, to := max(start, at), min(end, at+len(b)); from < to {
			copy(b[from-at:to-at], x[in+from-start:])
		}
		start = end
	}
}

// unpack copies what the others' buffers have for this rank into the result: elements from and to
// of every stream, after so many bytes.
func (g *Group) unpack(dst []float32, parity, skip, from, to int) error {
	for i := 1; i < g.ranks; i++ {
		p := (g.rank - i + g.ranks) % g.ranks // the next rank's run is the first of a stream
		r := &g.runs[p]
		f, t := max(r.from, from), min(r.to, to)
		if f >= t {
			continue
		}
		if skip == 0 {
			if err := g.meet(p, parity); err != nil {
				return err
			}
		}
		theirs := collective.Floats(g.seg.buffer(p, parity)[skip:])
		copy(dst[r.at+f-r.from:r.at+t-r.from], theirs[f-from:])
	}
	return nil
}
