package model

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/model/checkpoint"
)

// ropePage is the number of positions whose angles are computed together, when the first of them is used.
const ropePage = 64

// rope keeps the rotary embedding's cosines and sines, computed page by page as positions come into use, so
// that a long context limit costs nothing until it is reached.
type rope struct {
	invFreq []float32
	scale   float64
	pages   [][]float32
}

func newRope(c *checkpoint.Config) (*rope, error) {
	inv, scale, err := c.RopeFrequencies()
	if err != nil {
		return nil, fmt.Errorf("rope: %w", err)
	}
	return &rope{invFreq: inv, scale: scale, pages: make([][]float32, (c.MaxPositions+ropePage)/ropePage+1)}, nil
}

// width is the number of dimensions rotated.
func (r *rope) width() int { return 2 * len(r.invFreq) }

// row returns the cosines, then the sines, of a position. As in transformers the angle is a float32 product
// and its cosine and sine are scaled by the attention factor.
func (r *rope) row(pos int32) []float32 {
	n, w := int(pos)/ropePage, r.width()
	for n >= len(r.pages) {
		r.pages = append(r.pages, nil)
	}
	if r.pages[n] == nil {
		page := make([]float32, ropePage*w)
		for i := range ropePage {
			for j, f := range r.invFreq {
				angle := float64(float32(n*ropePage+i) * f)
				page[i*w+j] = float32(math.Cos(angle) * r.scale)
				page[i*w+len(r.invFreq)+j] = float32(math.Sin(angle) * r.scale)
			}
		}
		r.pages[n] = page
	}
	i := int(pos) % ropePage
	return r.pages[n][i*w : (i+1)*w]
}

// rows gathers the rows of several positions into dst, [len(positions)][width].
func (r *rope) rows(dst []float32, positions []int32) {
	w := r.width()
	for i, p := range positions {
		copy(dst[i*w:(i+1)*w], r.row(p))
	}
}
