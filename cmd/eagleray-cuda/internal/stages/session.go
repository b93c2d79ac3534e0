package stages

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/proof"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// blockSize is the number of positions of a block of the caches.
const blockSize = 16

// session is a model on the device, with a cache for so many sequences of so many positions.
type session struct {
	device  *cuda.Device
	watched *watchedContext
	model   *model.Model
	cache   compute.Cache
	// sequences is how many the cache has room for, of so many blocks each.
	sequences, blocks int
	one               *compute.Tensor
}

// session loads the model of a shape with dummy weights.
func (r *run) session(shape *Shape, cfg *model.Config, seed uint64, sequences, positions int) (
	*session, error) {
	return r.sessionOf(compute.BFloat16, shape.Cache, cfg, model.Dummy(seed), sequences, positions)
}

// sessionOf loads a model that computes in a type, with a cache of another. Blocks of a sequence
// are side by side, from its first one on.
func (r *run) sessionOf(dtype, cache compute.DType, cfg *model.Config, weights layers.Source,
	sequences, positions int) (_ *session, err error) {
	s := &session{sequences: sequences, blocks: (positions + blockSize - 1) / blockSize}
	if s.device, s.watched, err = r.open(dtype); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.model, err = model.Load(cfg, weights, s.device, model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		return nil, err
	}
	s.cache, err = s.device.NewCache(compute.CacheShape{
		Layers: cfg.Cache(), Blocks: sequences * s.blocks,
		BlockSize: blockSize, DType: cache, States: sequences})
	return s, err
}

// close frees all that the session has, and returns the first error of the device.
func (s *session) close() error {
	var err error
	if s.cache != nil {
		err = s.cache.Free()
	}
	if s.model != nil {
		s.model.Close()
	}
	s.device.Close()
	return errors.Join(err, s.device.Err())
}

// piece is a run of one sequence's tokens computed in a step.
type piece struct {
	sequence int
	start    int
	tokens   []int32
}

// batch lays pieces out as one step.
func (s *session) batch(pieces ...piece) *compute.Batch {
	b := new(compute.Batch)
	for i, p := range pieces {
		table := make([]int32, s.blocks)
		for j := range table {
			table[j] = int32(p.sequence*s.blocks + j)
		}
		for j, id := range p.tokens {
			at := p.start + j
			b.Tokens = append(b.Tokens, id)
			b.Position = append(b.Position, int32(at))
			b.Seq = append(b.Seq, int32(i))
			b.Slots = append(b.Slots, table[at/blockSize]*blockSize+int32(at%blockSize))
		}
		b.Tables = append(b.Tables, table)
		b.States = append(b.States, int32(p.sequence))
	}
	return b
}

// enqueue has the device compute a step and the logits of some rows, and does not wait for them.
func (s *session) enqueue(b *compute.Batch, rows []int32) (*layers.Tensor, error) {
	if err := s.model.Embed(b); err != nil {
		return nil, err
	}
	if err := s.model.Layers(b, s.cache); err != nil {
		return nil, err
	}
	return s.model.Logits(rows)
}

// logits computes pieces in one step and returns the logits of every row.
func (s *session) logits(pieces ...piece) ([][]float32, error) {
	b := s.batch(pieces...)
	rows := make([]int32, b.Rows())
	for i := range rows {
		rows[i] = int32(i)
	}
	t, err := s.enqueue(b, rows)
	if err != nil {
		return nil, err
	}
	v := append([]float32(nil), t.Floats()...)
	if err := s.model.Failed(); err != nil {
		return nil, err
	}
	out := make([][]float32, len(rows))
	for i := range out {
		out[i] = v[i*t.Width : (i+1)*t.Width]
	}
	return out, nil
}

// tokens are n tokens of a vocabulary, the same for the same seed.
func tokens(n, vocabulary, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7 + i*131 + 3 + seed*977) % vocabulary)
	}
	return ids
}

// bitShapes are the models whose rows are computed in several ways.
func bitShapes(tiny bool) []Shape {
	list := []Shape{tinyShape(64), tinyShape(128)}
	if !tiny {
		list = append(list, Shape{Name: "dummy of 4 layers", Hidden: 1024, Inner: 3072, Layers: 4,
			Heads: 16, KVHeads: 8, HeadDim: 128, Vocabulary: 8192, Tied: true})
	}
	return list
}

// modelBits computes the rows of a sequence alone, in chunks, and beside rows of 1, 4 and 20 other
// sequences.
func (r *run) modelBits(ctx context.Context, shape Shape) (y proof.Sameness, err error) {
	const others = 20
	n := 150
	if r.tiny() {
		n = 70
	}
	y.Name = fmt.Sprintf("model with heads of %d, logits of %d rows", shape.HeadDim, n)
	cfg, err := shape.config()
	if err != nil {
		return y, err
	}
	s, err := r.session(&shape, cfg, r.Seed, others+1, n)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	ids := tokens(n, shape.Vocabulary, 0)
	whole, err := s.logits(piece{tokens: ids})
	if err != nil {
		return y, err
	}
	for _, chunk := range []int{33, 8} {
		way, got := fmt.Sprintf("%d rows a step", chunk), [][]float32(nil)
		for at := 0; at < n; at += chunk {
			rows, err := s.logits(piece{start: at, tokens: ids[at:min(at+chunk, n)]})
			if err != nil {
				return y, err
			}
			got = append(got, rows...)
		}
		compareRows(&y, way, got, whole)
	}
	for _, size := range []int{1, 4, others} {
		if err := ctx.Err(); err != nil {
			return y, err
		}
		// The last row alone, at its place among those of others, which are prompts.
		pieces := []piece{{start: n - 1, tokens: ids[n-1:]}}
		for q := range size {
			pieces = append(pieces, piece{sequence: q + 1,
				tokens: tokens(1+q%5, shape.Vocabulary, q+1)})
		}
		rows, err := s.logits(pieces...)
		if err != nil {
			return y, err
		}
		compareRows(&y, fmt.Sprintf("beside %d others", size), rows[:1], whole[n-1:])
	}
	return y, nil
}

// compareRows notes a way to compute rows, and the first number that has other bits.
func compareRows(y *proof.Sameness, way string, got, want [][]float32) {
	y.Ways++
	for i, row := range want {
		for j, v := range row {
			if math.Float32bits(v) != math.Float32bits(got[i][j]) && y.Differ == "" {
				y.Differ = fmt.Sprintf("%s: row %d, logit %d is %v, not %v", way, i, j, got[i][j],
					v)
			}
		}
	}
}
