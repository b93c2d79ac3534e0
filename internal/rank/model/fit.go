package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Misfit says why a model cannot be divided as a layout says, and how it can be.
type Misfit struct {
	// Layout is what was asked for.
	Layout layout.Layout
	// Stages says that the number of its stages is at fault, not that of the ranks of each layer.
	Stages bool
	// Rows says that it is the number of ranks that divide long prompts.
	Rows bool
	Err  error
	// Nearest are layouts that the model can have, the nearest first: those of as many ranks, else
	// of other numbers. All divide long prompts among as many ranks as was asked for, unless
	// those are at fault.
	Nearest []layout.Layout
}

// Error says what is at fault, and which layouts work.
func (m *Misfit) Error() string {
	if ranks := m.Layout.World(); m.Nearest[0].World() == ranks {
		return fmt.Sprintf("%v: layouts of %d ranks that work are %s", m.Err, ranks,
			spell(m.Nearest))
	}
	return fmt.Sprintf("%v: no layout of %d ranks works, the nearest ones that do are %s", m.Err,
		m.Layout.World(), spell(m.Nearest))
}

// Unwrap returns what is at fault.
func (m *Misfit) Unwrap() error { return m.Err }

func spell(list []layout.Layout) (text string) {
	for i, l := range list {
		if i > 0 {
			text += ", "
		}
		text += l.String()
	}
	return text
}

// CheckLayout tells whether the model of c can be divided as a layout says: heads, widths and
// vocabulary among the ranks of each layer, and a layer or more for each stage. Prompts are divided
// among any number of ranks, unless layers keep a state, which each row has of the one before. The
// error is a *Misfit, or names an architecture that is not
// supported.
func CheckLayout(c *Config, l layout.Layout) error {
	if _, err := c.family(); err != nil {
		return err
	}
	l = l.Sizes()
	m := &Misfit{Layout: l}
	switch {
	case l.PCP > 1 && compute.StateBytes(c.Cache()) > 0:
		m.Rows, l.PP, l.PCP = true, l.PP*l.PCP, 1 // as many ranks for stages
		m.Err = fmt.Errorf("%s keeps a state that each row has of the one before: %d ranks cannot "+
			"divide a prompt", c.Architecture, m.Layout.PCP)
	case l.EP && c.Experts() == 0:
		return fmt.Errorf("%s has no experts to be held whole", c.Architecture)
	default:
		if m.Err = checkShard(c, l.TP, l.EP); m.Err == nil {
			m.Stages, m.Err = true, checkStages(c, l.PP)
		}
	}
	if m.Err == nil {
		return nil
	}
	m.Nearest = nearest(c, l)
	return m
}

// CheckShard tells whether each layer of the model of c can be divided among size tensor parallel
// ranks.
func CheckShard(c *Config, size int) error { return checkShard(c, size, false) }

// checkShard is CheckShard where ranks may hold whole experts.
func checkShard(c *Config, size int, whole bool) error {
	if size < 1 || layers.Chunks%size != 0 {
		return fmt.Errorf("tensor parallel size %d does not divide the %d chunks that every sum "+
			"between ranks has", size, layers.Chunks)
	}
	undivided := func(format string, n int) error {
		return fmt.Errorf(format+" cannot be divided among tensor parallel size %d", n, size)
	}
	if q := c.Quantization; q != nil && q.ActOrder && size > 1 {
		return fmt.Errorf("%s weights whose input features lie in an order of groups (desc_act) "+
			"cannot be divided among tensor parallel size %d", q.Method, size)
	}
	if c.Heads%size != 0 {
		return undivided("%d attention heads", c.Heads)
	}
	for _, l := range c.Cache() {
		if l.Kind == compute.KeysValues && l.Heads%size != 0 && size%l.Heads != 0 {
			return undivided("%d key/value heads", l.Heads)
		}
	}
	fam, err := c.family()
	if err != nil {
		return err
	}
	widths := []width{{"intermediate_size", c.IntermediateSize}}
	if fam.widths != nil {
		widths = fam.widths(c)
	}
	for _, w := range widths {
		if w.n%size != 0 && !(whole && w.name == expertWidth) {
			return undivided(w.name+" %d", w.n)
		}
	}
	if (size-1)*layers.VocabularyShare(c.VocabSize, size) >= c.VocabSize {
		return undivided("vocab_size %d", c.VocabSize)
	}
	return nil
}

// checkStages tells whether each of so many stages has a layer.
func checkStages(c *Config, stages int) error {
	if stages > c.Layers {
		return fmt.Errorf("each of %d pipeline stages needs a layer, and the model has %d", stages,
			c.Layers)
	}
	fam, err := c.family()
	if err != nil || stages == 1 || fam.undivided == nil {
		return err
	}
	if err := fam.undivided(c); err != nil {
		return fmt.Errorf("%s cannot be divided among %d pipeline stages: %w", c.Architecture,
			stages, err)
	}
	return nil
}

// nearest are up to three layouts that a model can have.
func nearest(c *Config, asked layout.Layout) []layout.Layout {
	var all []layout.Layout
	for tp := 1; tp <= layers.Chunks; tp++ {
		if checkShard(c, tp, asked.EP) != nil {
			continue
		}
		for pp := 1; checkStages(c, pp) == nil; pp++ {
			all = append(all, layout.Layout{TP: tp, PP: pp, PCP: asked.PCP, DP: asked.DP,
				EP: asked.EP})
		}
	}
	// By the number of ranks, fewer rather than more; then by how the sizes differ.
	ranks := func(l layout.Layout) (away, more int) {
		d := l.World() - asked.World()
		return max(d, -d), d
	}
	sizes := func(l layout.Layout) float64 {
		return math.Abs(math.Log2(float64(l.TP)/float64(max(asked.TP, 1)))) +
			math.Abs(math.Log2(float64(l.PP)/float64(asked.PP)))
	}
	slices.SortStableFunc(all, func(a, b layout.Layout) int {
		awayA, moreA := ranks(a)
		awayB, moreB := ranks(b)
		return cmp.Or(cmp.Compare(awayA, awayB), cmp.Compare(moreA, moreB),
			cmp.Compare(sizes(a), sizes(b)))
	})
	if all[0].World() == asked.World() {
		all = slices.DeleteFunc(all, func(l layout.Layout) bool {
			return l.World() != asked.World()
		})
	}
	return all[:min(len(all), 3)]
}
