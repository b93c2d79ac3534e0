package model

import (
	"cmp"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Rope is how the frequencies of the rotary embedding are scaled: transformers' rope_scaling, or
// rope_parameters.
type Rope struct {
	// Type is default, linear, llama3, yarn, longrope or proportional, or empty for a model without
	// rotary embedding.
	Type string
	// Factor is how much longer than in pre-training sequences may be.
	Factor float64
	// OriginalMaxPositions is the context length of pre-training (llama3 and yarn).
	OriginalMaxPositions int

	LowFreqFactor, HighFreqFactor float64 // llama3
	BetaFast, BetaSlow            float64 // yarn: rotations where inter- and extrapolation begin
	MScale, MScaleAllDim          float64 // yarn: 0 when absent
	AttentionFactor               float64 // yarn: 0 when to be inferred
	Truncate                      bool    // yarn: the correction range is in whole dimensions

	// ShortFactor and LongFactor, of longrope, divide the frequencies, one of each pair of
	// dimensions: the former where no sequence is longer than in pre-training. transformers takes
	// one or the other as a sequence grows, which leaves keys behind that were turned by the other;
	// here, as in vLLM, the longest sequence that is served decides (Config.Serve).
	ShortFactor, LongFactor []float64
	// ShortScale and LongScale are what cosines and sines are multiplied by then, 0 for
	// AttentionFactor (Phi-3.5-MoE).
	ShortScale, LongScale float64
	Long                  bool
}

// Temperature is by how much the queries of later positions are multiplied, as scores over more
// positions blur (Scalable-Softmax, https://arxiv.org/abs/2501.19399): at position p by
// 1 + Rise·ln(1 + ⌊(p+Ahead)/Step⌋). The zero value is 1.
type Temperature struct {
	Rise        float64
	Step, Ahead int
}

// At is the factor of a position.
func (t *Temperature) At(position int) float64 {
	return 1 + t.Rise*math.Log1p(float64((position+t.Ahead)/t.Step))
}

// Serve tells that no sequence is longer than so many positions.
func (c *Config) Serve(positions int) {
	c.served = positions
	c.Rope.Long = c.Rope.OriginalMaxPositions > 0 && positions > c.Rope.OriginalMaxPositions
}

// readRope reads the rotary embedding from rope_parameters (transformers 5), or rope_theta and
// rope_scaling (4). Where both are there rope_scaling goes first, as in transformers 5.
func readRope(f *checkpoint.Fields, c *Config) {
	readPartial(f, c)
	c.Interleaved = f.Flag("rope_interleave", false)
	c.RopeTheta = f.Number("rope_theta", cmp.Or(c.RopeTheta, 10000), 1)
	c.Rope.Type = "default"
	r := f.Object("rope_scaling")
	if r == nil || r.Len() == 0 {
		r = f.Object("rope_parameters")
	}
	if r == nil || f.Err() != nil {
		return
	}
	readRopeParameters(f, r, c)
	f.Adopt(r)
}

// readRopeOfLayers reads rope_parameters of layers with a window and of those without one, where
// there are such.
func readRopeOfLayers(f *checkpoint.Fields, c *Config) bool {
	r := f.Object("rope_parameters")
	if r == nil || !r.Has("sliding_attention") {
		return false
	}
	if local := r.Object("sliding_attention"); local != nil {
		c.LocalTheta = local.Number("rope_theta", c.LocalTheta, 1)
		if kind := local.Text("rope_type", "default"); kind != "default" {
			local.Fail(checkpoint.ErrUnsupported, "rope_type", "is %s", checkpoint.Short(kind))
		}
		f.Adopt(local)
	}
	c.Rope.Type = "default"
	if global := r.Object("full_attention"); global != nil {
		readRopeParameters(f, global, c)
		f.Adopt(global)
	}
	f.Adopt(r)
	return true
}

func readRopeParameters(f, r *checkpoint.Fields, c *Config) {
	for _, nested := range []string{"full_attention", "sliding_attention"} {
		if r.Has(nested) {
			r.Fail(checkpoint.ErrUnsupported, nested,
				"differs from the other layers: one rotary embedding for all is expected")
		}
	}
	c.RopeTheta = r.Number("rope_theta", c.RopeTheta, 1)
	readPartial(r, c)
	legacy := r.Text("type", "default")
	c.Rope.Type = r.Text("rope_type", legacy)
	if r.Set("type") && legacy != c.Rope.Type {
		r.Fail(checkpoint.ErrMalformed, "type", "is %s, but rope_type is %s",
			checkpoint.Short(legacy), checkpoint.Short(c.Rope.Type))
	}
	if c.Rope.Type == "dynamic" && r.Set("alpha") { // HunYuan's is fixed: it stretches the base
		dim := float64(c.HeadDim)
		c.RopeTheta *= math.Pow(required(r, "alpha"), dim/(dim-2))
		c.Rope.Type = "default"
	}
	switch c.Rope.Type {
	case "default":
	case "mrope": // of three positions, which in text are one
		c.Rope.Type = "default"
	case "dynamic": // the base grows with sequences that are longer than these
		c.Rope.Type = "default"
		c.MaxPositions = min(c.MaxPositions, r.Nullable("original_max_position_embeddings",
			c.MaxPositions, 1, checkpoint.MaxDim))
	case "linear":
		c.Rope.Factor = required(r, "factor")
	case "llama3":
		readOriginalMax(f, r, c)
		c.Rope.Factor = required(r, "factor")
		c.Rope.LowFreqFactor = required(r, "low_freq_factor")
		c.Rope.HighFreqFactor = required(r, "high_freq_factor")
		if r.Err() == nil && c.Rope.HighFreqFactor < c.Rope.LowFreqFactor {
			r.Fail(checkpoint.ErrMalformed, "high_freq_factor", "is %v, below low_freq_factor %v",
				c.Rope.HighFreqFactor, c.Rope.LowFreqFactor)
		}
	case "yarn":
		readOriginalMax(f, r, c)
		readYaRN(r, c)
	case "longrope", "su": // su is its first name
		readOriginalMax(f, r, c)
		readLongRope(f, r, c)
	case "proportional":
		c.Rope.Factor = r.Number("factor", 1, 0)
	default:
		r.Fail(checkpoint.ErrUnsupported, "rope_type", "is %s", checkpoint.Short(c.Rope.Type))
	}
}

// readLongRope reads the two lists of factors, and what cosines and sines are multiplied by:
// √(1 + ln(factor)/ln(original length)) unless it is given (https://arxiv.org/abs/2402.13753).
func readLongRope(f, r *checkpoint.Fields, c *Config) {
	y := &c.Rope
	y.Type = "longrope"
	pairs := cmp.Or(c.RotaryDim, c.HeadDim) / 2
	for key, list := range map[string]*[]float64{"short_factor": &y.ShortFactor,
		"long_factor": &y.LongFactor} {
		*list = r.Numbers(key)
		if len(*list) != pairs {
			r.Fail(checkpoint.ErrMalformed, key, "has %d entries for %d pairs of dimensions",
				len(*list), pairs)
		}
	}
	y.Factor = r.Number("factor", float64(c.MaxPositions)/float64(y.OriginalMaxPositions), 0)
	if f.Set("original_max_position_embeddings") {
		y.Factor = float64(c.MaxPositions) / float64(y.OriginalMaxPositions)
	}
	y.AttentionFactor = r.Number("attention_factor", 0, 0)
	if y.AttentionFactor == 0 {
		y.AttentionFactor = 1
		if y.Factor > 1 {
			y.AttentionFactor = math.Sqrt(1 + math.Log(y.Factor)/
				math.Log(float64(y.OriginalMaxPositions)))
		}
	}
	y.ShortScale, y.LongScale = r.Number("short_mscale", 0, 0), r.Number("long_mscale", 0, 0)
	c.Rope.Long = c.MaxPositions > c.Rope.OriginalMaxPositions
}

// readPartial reads which part of a head's dimensions is turned. Only families that have set
// RotaryDim know it.
func readPartial(f *checkpoint.Fields, c *Config) {
	const key = "partial_rotary_factor"
	if !f.Set(key) {
		return
	}
	part := f.Number(key, 1, 0)
	dim := int(float64(c.HeadDim) * part)
	switch {
	case c.RotaryDim == 0 && part != 1:
		f.Fail(checkpoint.ErrUnsupported, key, "is %s", f.Excerpt(key))
	case part > 1 || dim < 2 || dim%2 != 0:
		f.Fail(checkpoint.ErrMalformed, key, "is %v: %d of %d dimensions cannot be turned", part,
			dim, c.HeadDim)
	case c.RotaryDim != 0:
		c.RotaryDim = dim
	}
}

// partialRotary lets partial_rotary_factor be given, by default as it is.
func (c *Config) partialRotary(factor float64) { c.RotaryDim = int(float64(c.HeadDim) * factor) }

// readOriginalMax reads the pre-training length: beside the other fields goes before inside
// rope_parameters, and the model's maximum stands for an absent one, as in transformers 5.
func readOriginalMax(f, r *checkpoint.Fields, c *Config) {
	const key = "original_max_position_embeddings"
	c.Rope.OriginalMaxPositions = f.Nullable(key, r.Nullable(key, c.MaxPositions, 1,
		checkpoint.MaxDim), 1, checkpoint.MaxDim)
}

func readYaRN(r *checkpoint.Fields, c *Config) {
	y := &c.Rope
	y.Factor = r.Number("factor", float64(c.MaxPositions)/float64(y.OriginalMaxPositions), 0)
	y.BetaFast = orDefault(r.Number("beta_fast", 32, -1), 32)
	y.BetaSlow = orDefault(r.Number("beta_slow", 1, -1), 1)
	y.MScale = r.Number("mscale", 0, -1)
	y.MScaleAllDim = r.Number("mscale_all_dim", 0, -1)
	y.AttentionFactor = r.Number("attention_factor", 0, 0)
	y.Truncate = r.Flag("truncate", true)
	if y.BetaFast < 0 || y.BetaSlow < 0 || y.MScale < 0 || y.MScaleAllDim < 0 {
		r.Fail(checkpoint.ErrMalformed, "beta_fast, beta_slow, mscale or mscale_all_dim",
			"is negative")
	}
	if r.Err() == nil && y.BetaFast < y.BetaSlow {
		r.Fail(checkpoint.ErrMalformed, "beta_fast", "is %v, below beta_slow %v", y.BetaFast,
			y.BetaSlow)
	}
}

// orDefault is Python's "v or def".
func orDefault(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}

// required reads a positive number that has no default.
func required(r *checkpoint.Fields, key string) float64 {
	if !r.Set(key) {
		r.Fail(checkpoint.ErrMalformed, key, "is missing")
	}
	return r.Number(key, 0, 0)
}

// RopeFrequencies computes the rotary embedding's inverse frequencies, one for each pair of the
// HeadDim dimensions, and the factor that cosines and sines are multiplied with. Arithmetic is in
// float32 in the order of transformers' modeling_rope_utils.py, where PyTorch turns a scalar
// divided by a tensor into the scalar times the reciprocal; the only difference is that powers are
// rounded correctly, where PyTorch's may be wrong in the last bit. Linear scaling:
// https://arxiv.org/abs/2306.15595; YaRN: https://arxiv.org/abs/2309.00071; llama3: Llama 3.1;
// proportional, whose frequencies are those of whole heads, and which leaves out the last: Gemma 4.
//
// It fails for a model without rotary embedding, and when the parameters put a frequency out of
// float32's range.
func (c *Config) RopeFrequencies() (invFreq []float32, attentionFactor float64, err error) {
	dim, proportional := cmp.Or(c.RotaryDim, c.HeadDim), c.Rope.Type == "proportional"
	if proportional {
		dim = c.HeadDim
	}
	if dim < 2 || dim%2 != 0 {
		return nil, 0, fmt.Errorf("rotary embedding needs an even head dimension, got %d", dim)
	}
	wave := make([]float32, dim/2) // base ** (2i / dim)
	for i := range wave {
		exponent := float32(2*i) / float32(dim)
		wave[i] = float32(math.Pow(float64(float32(c.RopeTheta)), float64(exponent)))
	}
	attentionFactor = 1
	switch c.Rope.Type {
	case "default":
		invFreq = inverse(wave)
	case "linear", "proportional":
		invFreq = inverse(wave)
		for i := range invFreq {
			invFreq[i] /= float32(c.Rope.Factor)
		}
	case "llama3":
		invFreq = c.Rope.llama3(inverse(wave))
	case "yarn":
		invFreq, attentionFactor = c.Rope.yarn(wave, c.RopeTheta), c.Rope.yarnAttention()
	case "longrope":
		factors, scale := c.Rope.ShortFactor, c.Rope.ShortScale
		if c.Rope.Long {
			factors, scale = c.Rope.LongFactor, c.Rope.LongScale
		}
		for i := range wave {
			wave[i] *= float32(factors[i])
		}
		invFreq, attentionFactor = inverse(wave), cmp.Or(scale, c.Rope.AttentionFactor)
	default:
		return nil, 0, fmt.Errorf("%w: rope type %q", checkpoint.ErrUnsupported, c.Rope.Type)
	}
	for i, v := range invFreq {
		if !(v > 0) || math.IsInf(float64(v), 0) {
			return nil, 0, fmt.Errorf("%w: rope_theta %v and %+v give frequency %d as %v",
				checkpoint.ErrMalformed, c.RopeTheta, c.Rope, i, v)
		}
	}
	if proportional && c.RotaryDim > 0 {
		clear(invFreq[c.RotaryDim/2:])
	}
	return invFreq, attentionFactor, nil
}

func inverse(wave []float32) []float32 {
	inv := make([]float32, len(wave))
	for i, w := range wave {
		inv[i] = 1 / w
	}
	return inv
}

// llama3 keeps high frequencies, divides low ones by the factor, and blends in between. The float32
// conversions of products keep the compiler from fusing them into the following addition.
func (r *Rope) llama3(inv []float32) []float32 {
	original := float64(r.OriginalMaxPositions)
	lowWavelen, highWavelen := float32(original/r.LowFreqFactor), float32(original/r.HighFreqFactor)
	factor := float32(r.Factor)
	for i, f := range inv {
		wavelen := (1 / f) * float32(2*math.Pi)
		switch {
		case wavelen > lowWavelen:
			inv[i] = f / factor
		case wavelen >= highWavelen:
			smooth := (float32((1/wavelen)*float32(original)) - float32(r.LowFreqFactor)) /
				float32(r.HighFreqFactor-r.LowFreqFactor)
			inv[i] = float32(float32((1-smooth)*f)/factor) + float32(smooth*f)
		}
	}
	return inv
}

// yarn interpolates the dimensions that turn less than BetaSlow times in the pre-training length,
// keeps those that turn more than BetaFast times, and ramps between.
func (r *Rope) yarn(wave []float32, base float64) []float32 {
	dim := float64(2 * len(wave))
	correction := func(rotations float64) float64 {
		return dim * math.Log(float64(r.OriginalMaxPositions)/(rotations*2*math.Pi)) /
			(2 * math.Log(base))
	}
	low, high := correction(r.BetaFast), correction(r.BetaSlow)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001 // as the reference does, against a division by zero
	}
	inv := make([]float32, len(wave))
	for i, w := range wave {
		ramp := (float32(i) - float32(low)) / float32(high-low)
		keep := 1 - min(max(ramp, 0), 1)
		extrapolated, interpolated := 1/w, 1/float32(float32(r.Factor)*w)
		inv[i] = float32(interpolated*(1-keep)) + float32(extrapolated*keep)
	}
	return inv
}

// yarnAttention is the given attention factor, else the one that the paper suggests.
func (r *Rope) yarnAttention() float64 {
	switch {
	case r.AttentionFactor != 0:
		return r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return r.mscale(r.MScale) / r.mscale(r.MScaleAllDim)
	default:
		return r.mscale(1)
	}
}

// mscale is by how much yarn sharpens attention, m being how much of it.
func (r *Rope) mscale(m float64) float64 {
	if r.Factor <= 1 {
		return 1
	}
	return 0.1*m*math.Log(r.Factor) + 1
}
