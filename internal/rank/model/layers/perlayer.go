package layers

import "github.com/eagleray/eagleray/internal/compute"

// PerLayerInputs are what each layer is given of a row beside the hidden state (per-layer
// embeddings, Gemma 3n and 4): of its token a row of a table, and of its embedding a projection,
// which is normalised, in as many parts as there are layers.
type PerLayerInputs struct {
	*rank
	table             *Embedding
	projection        *Linear
	norm              compute.Memory
	width             int
	scale, tableScale float32
	eps               float32
	inputs, looked    Tensor // [rows][layers · width]
}

// PerLayerOptions are the numbers of PerLayerInputs.
type PerLayerOptions struct {
	// Vocabulary is how many rows the table has, Hidden and Width are those of the hidden state and
	// of what a layer is given.
	Vocabulary, Layers, Hidden, Width int
	// Scale multiplies the projection, TableScale the rows of the table.
	Scale, TableScale float32
	Eps               float32
}

// PerLayerInputs makes them of the modules embed_tokens_per_layer, per_layer_model_projection and
// per_layer_projection_norm under prefix.
func (l *Loader) PerLayerInputs(prefix string, o PerLayerOptions) *PerLayerInputs {
	all := o.Layers * o.Width
	l.Own(2 * all)
	return &PerLayerInputs{rank: l.rank, width: o.Width, scale: o.Scale, tableScale: o.TableScale,
		eps:        o.Eps,
		table:      l.Embedding(prefix+"embed_tokens_per_layer", o.Vocabulary, all),
		projection: l.Linear(prefix+"per_layer_model_projection", all, o.Hidden),
		norm:       l.vector(prefix+"per_layer_projection_norm.weight", o.Width, 0, o.Width)}
}

// rootHalf keeps the variance of the sum of two.
const rootHalf = 0.70710678

// Prepare makes what the layers are given of a step's rows: tokens, and their embeddings.
func (y *PerLayerInputs) Prepare(embedded *Tensor, tokens []int32) {
	y.projection.Forward(&y.inputs, embedded)
	y.dev.Scale(&y.inputs, y.scale)
	y.dev.Heads(y.inputs.All(), y.width, y.norm, y.eps, nil)
	y.table.Lookup(&y.looked, tokens)
	y.dev.Scale(&y.looked, y.tableScale)
	y.dev.Add(&y.inputs, &y.looked)
	y.dev.Scale(&y.inputs, rootHalf)
}

// PerLayerInput adds what a layer makes of its input to the hidden state:
// norm(projection(gelu(gate(x))·input)).
type PerLayerInput struct {
	of         *PerLayerInputs
	layer      int
	gate, back *Linear
	norm       *RMSNorm
}

// PerLayerInput makes that of a layer under prefix: modules per_layer_input_gate,
// per_layer_projection and post_per_layer_input_norm.
func (l *Loader) PerLayerInput(of *PerLayerInputs, prefix string,
	layer, hidden int) *PerLayerInput {
	l.widen(&l.inner, 2*of.width)
	l.widen(&l.gated, of.width)
	l.widen(&l.rank.sum, hidden)
	return &PerLayerInput{of: of, layer: layer,
		gate: l.Linear(prefix+"per_layer_input_gate", of.width, hidden),
		back: l.Linear(prefix+"per_layer_projection", hidden, of.width),
		norm: l.RMSNorm(prefix+"post_per_layer_input_norm", hidden, of.eps)}
}

// Add adds it to the hidden state.
func (y *PerLayerInput) Add(x *Tensor) {
	r, width := y.of.rank, y.of.width
	r.dev.Resize(&r.inner, x.Rows, 2*width)
	y.gate.into(r.inner.Columns(0, width), x)
	r.dev.Copy(r.inner.Columns(width, width), y.of.inputs.Columns(y.layer*width, width))
	r.dev.Gate(compute.Gating{Activation: compute.GELUTanh}, &r.gated, &r.inner)
	y.back.Forward(&r.sum, &r.gated)
	r.dev.Add(x, y.norm.Forward(&r.sum))
}
