package layers

import (
	"cmp"
	"math"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
)

// GatedMLP is down(a(gate(x))·up(x)), a being an activation. Its inner features are divided among
// the ranks.
type GatedMLP struct {
	*rank
	activation compute.Activation
	gateUp     *ColumnLinear
	down       *RowLinear
}

// GatedMLPOptions are the points in which gated blocks differ.
type GatedMLPOptions struct {
	// Activation is SiLU, GELU or GELUTanh.
	Activation compute.Activation
	Bias       bool
	// Fused is the module in which gate and up stand one after the other; "" is Gate and Up.
	Fused string
	// Gate, Up and Down are the modules of the projections, "" is gate_proj, up_proj and down_proj.
	Gate, Up, Down string
	// Multiplier is what the output is multiplied by; 0 is 1.
	Multiplier float32
}

// GatedMLP makes the block under prefix, of hidden outer and inner inner features.
func (l *Loader) GatedMLP(prefix string, hidden, inner int, opt GatedMLPOptions) *GatedMLP {
	l.widen(&l.gated, inner/l.group.Size)
	gate := l.columnPart(prefix+cmp.Or(opt.Gate, "gate_proj"), inner, hidden)
	up := l.columnPart(prefix+cmp.Or(opt.Up, "up_proj"), inner, hidden)
	if opt.Fused != "" {
		gate, up = gate.within(prefix+opt.Fused, 0, 2*inner), up.within(prefix+opt.Fused, inner,
			2*inner)
	}
	y := &GatedMLP{rank: l.rank, activation: opt.Activation,
		gateUp: l.column(&l.inner, opt.Bias, gate, up),
		down: l.Row(prefix+cmp.Or(opt.Down, "down_proj"), hidden, inner,
			opt.Bias).Scaled(opt.Multiplier)}
	return y
}

// AdaptedAs says under which prefix adapters have the block's modules, where the checkpoint has
// them under another one.
func (y *GatedMLP) AdaptedAs(prefix string) *GatedMLP {
	for _, of := range []*adaptable{y.gateUp.adapters, y.down.adapters} {
		for i := range of.parts {
			p := &of.parts[i]
			p.module = prefix + p.module[strings.LastIndexByte(p.module, '.')+1:]
		}
	}
	return y
}

// Forward returns the block's output for x.
func (y *GatedMLP) Forward(x *Tensor) (*Tensor, error) {
	return y.down.Forward(y.middle(x))
}

// Add adds the block's output for x to the residual stream.
func (y *GatedMLP) Add(residual, x *Tensor) error {
	return y.down.Add(residual, y.middle(x))
}

func (y *GatedMLP) middle(x *Tensor) *Tensor {
	if gating := (compute.Gating{Activation: y.activation}); y.gateUp.adapters.concerns() ||
		y.down.adapters.concerns() {
		y.dev.Gate(gating, &y.gated, y.gateUp.Forward(x))
		return &y.gated
	}
	y.dev.GatedProduct(compute.Gating{Activation: y.activation}, &y.gated, y.gateUp.result,
		y.gateUp.weight, x.All(), y.gateUp.bias, y.down.weight)
	return &y.gated
}

// MLP is second(activation(first(x))). Its inner features are divided among the ranks.
type MLP struct {
	*rank
	first      *ColumnLinear
	activation compute.Activation
	xielu      compute.XIELU
	curved     curved // nil for an activation without numbers
	second     *RowLinear
}

// curved is a device that has activations whose numbers are learned.
type curved interface {
	// XIELU applies one to x.
	XIELU(a compute.XIELU, x *Tensor)
}

// MLP makes the block of the modules first and second, of hidden outer and inner inner features.
func (l *Loader) MLP(first, second string, hidden, inner int, a compute.Activation,
	bias bool) *MLP {
	return &MLP{rank: l.rank, activation: a,
		first:  l.column(&l.inner, bias, l.columnPart(first, inner, hidden)),
		second: l.Row(second, hidden, inner, bias)}
}

// XIELU gives the block the activation whose numbers the checkpoint has under a module.
func (y *MLP) XIELU(l *Loader, module string) *MLP {
	beta := l.number(module+".beta", nil, 0.5)
	y.xielu = compute.XIELU{Beta: beta, Eps: l.number(module+".eps", nil, -1e-6),
		Above: softplus(l.number(module+".alpha_p", []int{1}, 0)),
		Below: beta + softplus(l.number(module+".alpha_n", []int{1}, 0))}
	y.curved = only[curved](l, "the activation xielu is not computed on this device: CPUs have it")
	return y
}

// number is the one element of a tensor. Without a shape it may be missing, and is def.
func (l *Loader) number(tensor string, shape []int, def float32) float32 {
	if shape == nil && !l.src.Has(tensor) {
		return def
	}
	if stored := l.Shape(tensor); stored != nil {
		shape = stored
	}
	if v := l.floats(tensor, shape, 0, 1); v != nil {
		return v[0]
	}
	return def
}

// softplus is ln(1+eˣ).
func softplus(x float32) float32 { return float32(math.Log1p(math.Exp(float64(x)))) }

// Forward returns the block's output for x.
func (y *MLP) Forward(x *Tensor) (*Tensor, error) { return y.second.Forward(y.middle(x)) }

// Add adds the block's output for x to the residual stream.
func (y *MLP) Add(residual, x *Tensor) error { return y.second.Add(residual, y.middle(x)) }

func (y *MLP) middle(x *Tensor) *Tensor {
	inner := y.first.Forward(x)
	if y.curved != nil {
		y.curved.XIELU(y.xielu, inner)
		return inner
	}
	y.dev.Activate(y.activation, inner)
	return inner
}
