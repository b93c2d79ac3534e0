package runner

import (
	"testing"

	"github.com/eagleray/eagleray/internal/link/step"
)

// TestPooling pools a prompt in pieces of every size beside a request that generates: the states
// are those of the last token, or the mean over all, or all of them, whatever the pieces, and both
// are answered in the order of the plan.
func TestPooling(t *testing.T) {
	const length = 37
	text := tokens(length, 1)
	var mean [2]float64
	var all []float64
	for n := 1; n <= length; n++ {
		next := float64(follow(text[:n]))
		mean[0] += next / length
		mean[1] += next * next / length
		all = append(all, next, next*next)
	}
	last := float64(follow(text))
	for _, c := range []struct {
		pooling step.Pooling
		want    []float64
	}{
		{step.PoolLast, []float64{last, last * last}},
		{step.PoolMean, mean[:]},
		{step.PoolAll, all},
	} {
		for size := uint32(1); size <= length; size++ {
			r, o := newRunner(t, true)
			var res *step.Result
			for start := uint32(0); start < length; start += size {
				n := min(size, length-start)
				end := prompt
				if start+n < length {
					end = chunk
				}
				x := piece{1, start, n, int32(end), nil}
				for b := (start + blockSize - 1) / blockSize; b*blockSize < start+n; b++ {
					x.blocks = append(x.blocks, 7+b)
				}
				p := plan(uint64(start/size+1), x)
				if start == 0 {
					p.New = []step.NewRequest{{Slot: 1, PromptLen: length, Tokens: text,
						Params: greedy(), Pooling: c.pooling}}
				}
				if end == prompt {
					p.New = append(p.New, step.NewRequest{Slot: 2, PromptLen: 3, Tokens: text[:3],
						Params: greedy()})
					beside := plan(0, piece{2, 0, 3, prompt, []uint32{20}})
					p.Rows, p.Blocks = append(p.Rows, beside.Rows...), append(p.Blocks,
						beside.Blocks...)
				}
				res = execute(t, r, o, p)
			}
			if len(res.Pooled) != 1 || res.Pooled[0].Slot != 1 || len(res.Slot) != 2 ||
				res.Slot[0] != 1 || res.Slot[1] != 2 || res.Token[1] != follow(text[:3]) {
				t.Fatalf("%v in pieces of %d: %+v", c.pooling, size, res)
			}
			if len(res.Pooled[0].Vector) != len(c.want) {
				t.Fatalf("%v: %d numbers", c.pooling, len(res.Pooled[0].Vector))
			}
			for i, v := range res.Pooled[0].Vector {
				if d := float64(v) - c.want[i]; d > 1e-3 || d < -1e-3 {
					t.Errorf("%v in pieces of %d: %v, want %v", c.pooling, size,
						res.Pooled[0].Vector, c.want)
				}
			}
		}
	}
}
