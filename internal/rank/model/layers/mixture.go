package layers

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
)

// Mixture sends each row to the few experts, gated feed-forward blocks, that its router finds most
// likely and adds their outputs, weighted. Every rank holds its share of each expert's inner
// features.
type Mixture struct {
	*rank
	router compute.Weight
	mix    compute.Mixture
}

// MixtureOptions are the numbers of a mixture of experts.
type MixtureOptions struct {
	// Routing is how experts are chosen, without a correction.
	compute.Routing
	Experts int
	// Inner is the number of inner features of each expert.
	Inner int
	// Names are the modules of an expert's gate, up and down; "" is gate_proj, up_proj and
	// down_proj.
	Names [3]string
	// Corrected says that the router has a correction, e_score_correction_bias.
	Corrected bool
}

// Mixture makes the block under prefix: modules gate, and gate_proj, up_proj and down_proj of each
// expert.
func (l *Loader) Mixture(prefix string, hidden int, opt MixtureOptions) *Mixture {
	y := &Mixture{rank: l.rank, router: l.weightIn(Plain{}, 1, whole(prefix+"gate", opt.Experts, hidden)),
		mix: compute.Mixture{Routing: opt.Routing, Chunks: Chunks / l.group.Size,
			Experts: make([]compute.Expert, opt.Experts)}}
	if opt.Corrected {
		y.mix.Correction = l.vector(prefix+"gate.e_score_correction_bias", opt.Experts, 0,
			opt.Experts)
	}
	l.widen(&l.rank.sum, hidden)
	l.widen(&l.scores, opt.Experts)
	if l.scale != nil {
		l.widen(&l.mixing, l.scale.planner.MixtureWidth(hidden, opt.Inner/l.group.Size,
			y.mix.Chunks, opt.Experts, opt.PerToken))
	}
	names := opt.Names
	if names[0] == "" {
		names = [3]string{"gate_proj", "up_proj", "down_proj"}
	}
	for e := range y.mix.Experts {
		p := fmt.Sprintf("%sexperts.%d.", prefix, e)
		y.mix.Experts[e] = compute.Expert{
			GateUp: l.weight(1, l.columnPart(p+names[0], opt.Inner, hidden),
				l.columnPart(p+names[1], opt.Inner, hidden)),
			Down: l.weight(y.mix.Chunks, l.rowPart(p+names[2], hidden, opt.Inner)),
		}
	}
	return y
}

// Add adds the block's output for x to the residual stream.
func (y *Mixture) Add(residual, x *Tensor) error {
	sum, err := y.Forward(x)
	if err == nil {
		y.AddTo(residual, sum)
	}
	return err
}

// Forward returns the block's output for x.
func (y *Mixture) Forward(x *Tensor) (*Tensor, error) {
	y.dev.Resize(&y.scores, x.Rows, y.router.Out())
	y.router.Product(y.scores.All(), x.All(), nil)
	y.dev.Mix(&y.sum, x, &y.scores, &y.mix)
	return &y.sum, y.allReduce(&y.sum)
}
