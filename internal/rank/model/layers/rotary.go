package layers

import "github.com/eagleray/eagleray/internal/compute"

// Rotary turns the first dimensions of query and key heads by angles that follow from the position.
// All attention layers of a model share one.
type Rotary struct {
	table  compute.Rotary
	angles Tensor // of the rows of the step
}

// Rotary makes a rotary embedding of 2·len(frequencies) dimensions whose cosines and sines are
// multiplied by scale.
func (l *Loader) Rotary(frequencies []float32, scale float64, maxPositions int) *Rotary {
	return l.rotary(frequencies, func(int) float64 { return scale }, maxPositions)
}

// Temperature is a rotary embedding that turns nothing: of so many dimensions, which it multiplies
// by the scale of their position.
func (l *Loader) Temperature(dim int, scale func(position int) float64,
	maxPositions int) *Rotary {
	return l.rotary(make([]float32, dim/2), scale, maxPositions)
}

func (l *Loader) rotary(frequencies []float32, scale func(position int) float64,
	maxPositions int) *Rotary {
	l.widen(nil, 2*len(frequencies))
	if l.scale != nil {
		l.scale.Vectors += l.scale.planner.RotaryBytes(2*len(frequencies), l.scale.positions)
		return &Rotary{}
	}
	return &Rotary{table: l.dev.Rotary(frequencies, scale, maxPositions)}
}

// turns are the angles, nil for a model that has positions another way.
func (y *Rotary) turns() *Tensor {
	if y == nil {
		return nil
	}
	return &y.angles
}

// Prepare computes the angles of the rows of a step, before its first attention layer.
func (y *Rotary) Prepare(positions []int32) { y.table.Angles(&y.angles, positions) }
