package compute

import (
	"fmt"
	"iter"
	"math"
	"slices"
)

// CodeType says what number a code of a quantised matrix stands for.
type CodeType uint8

const (
	// Code4 is a number from 0 to 15, which stands for one of Codes.Values.
	Code4 CodeType = iota
	// Code8 is a two's complement integer.
	Code8
	// CodeE4M3 is a floating-point number of 4 bits of exponent and 3 of mantissa, without
	// infinities ("FP8 Formats for Deep Learning", https://arxiv.org/abs/2209.05433).
	CodeE4M3
	codeTypes
)

// String names the type in errors.
func (t CodeType) String() string {
	if t >= codeTypes {
		return fmt.Sprintf("code(%d)", uint8(t))
	}
	return [...]string{"4-bit codes", "8-bit integers", "e4m3"}[t]
}

// Codes is a rectangle of a matrix [output features][input features] as quantised checkpoints have
// it, in one form for all their layouts: element (r, c) is
//
//	number(Code[r·Cols+c])·Scale[r·groups+g] + Offset[r·groups+g],  g = (Lead+c)/Group
//
// A device multiplies by the codes of a group as they are, then by its scale: each group's sum is a
// chain in the order of the columns, which is multiplied by the scale and added to those of the
// groups before it.
type Codes struct {
	Type CodeType
	// Values are the numbers that codes of Code4 stand for.
	Values [16]float32
	// Rows and Cols are those of the rectangle.
	Rows, Cols int
	// From is the first input feature of the rectangle among the Of that its matrix has, by which
	// sums are cut into chunks; Of 0 is a rectangle of all of them.
	From, Of int
	// Group is how many input features share a scale; 0 is all of Cols. Lead is how many of the
	// first group lie before the rectangle, on ranks whose share begins within one.
	Group, Lead int
	// Code has a byte for each element.
	Code []byte
	// Scale and Offset have a number for each row and group; Offset is nil where there is none.
	Scale, Offset []float32
	// Super, if not 0, is how many groups share what their scales and offsets are multiples of:
	// Scale is Factor times an integer of 8 bits, Offset is OffsetFactor times one. SuperLead is
	// how many of the groups that share the first ones lie before the rectangle. Codes of 8 bits
	// are then those of GGUF: -32 to 31, with offsets 0 to 63.
	Super, SuperLead int
	// Factor and OffsetFactor have a number for each row and Super groups; OffsetFactor is nil
	// where Offset is.
	Factor, OffsetFactor []float32
	// Order is which of the input features each column is; nil leaves them in order.
	Order []int32
}

// Groups is how many groups a row has.
func (c *Codes) Groups() int {
	if c.Group == 0 {
		return 1
	}
	return (c.Lead + c.Cols + c.Group - 1) / c.Group
}

// Supers is how many factors a row has.
func (c *Codes) Supers() int {
	if c.Super == 0 {
		return 0
	}
	return (c.SuperLead + c.Groups() + c.Super - 1) / c.Super
}

// Alike tells whether the rows of two rectangles can be stacked in one matrix.
func (c *Codes) Alike(b *Codes) bool {
	return c.Type == b.Type && (c.Type != Code4 || c.Values == b.Values) &&
		c.Cols == b.Cols && c.From == b.From && c.Of == b.Of &&
		c.Group == b.Group && c.Lead == b.Lead &&
		c.Super == b.Super && c.SuperLead == b.SuperLead &&
		(c.Offset == nil) == (b.Offset == nil) && sameOrder(c.Order, b.Order)
}

func sameOrder(a, b []int32) bool {
	if len(a) != len(b) || len(a) == 0 {
		return len(a) == len(b)
	}
	return &a[0] == &b[0] || slices.Equal(a, b)
}

// Alike visits codes by those, side by side, that one matrix can be made of.
func Alike(sources []Codes) iter.Seq2[int, []Codes] {
	return func(yield func(first int, some []Codes) bool) {
		for first := 0; first < len(sources); {
			end := first + 1
			for end < len(sources) && sources[first].Alike(&sources[end]) {
				end++
			}
			if !yield(first, sources[first:end]) {
				return
			}
			first = end
		}
	}
}

// Check returns an error that names the first size that does not fit. Codes that are only weighed
// have none of their slices but Offset, which then may have any length.
func (c *Codes) Check() error {
	cells := c.Rows * c.Groups()
	switch {
	case c.Type >= codeTypes:
		return fmt.Errorf("unknown %v", c.Type)
	case c.Rows < 1 || c.Cols < 1:
		return fmt.Errorf("shape %d x %d", c.Rows, c.Cols)
	case c.From < 0 || c.Of == 0 && c.From > 0 || c.Of > 0 && c.From+c.Cols > c.Of:
		return fmt.Errorf("columns %d to %d of %d", c.From, c.From+c.Cols, c.Of)
	case c.Group < 0 || c.Lead < 0 || c.Lead > 0 && c.Lead >= c.Group:
		return fmt.Errorf("groups of %d, %d of the first one elsewhere", c.Group, c.Lead)
	case c.Super < 0 || c.SuperLead < 0 || c.SuperLead > 0 && c.SuperLead >= c.Super:
		return fmt.Errorf("factors of %d groups, %d of the first ones elsewhere", c.Super,
			c.SuperLead)
	case c.Code == nil && c.Scale == nil:
		return nil
	case len(c.Code) != c.Rows*c.Cols:
		return fmt.Errorf("%d codes for %d x %d", len(c.Code), c.Rows, c.Cols)
	case len(c.Scale) != cells || c.Offset != nil && len(c.Offset) != cells:
		return fmt.Errorf("%d scales and %d offsets for %d x %d groups", len(c.Scale),
			len(c.Offset), c.Rows, c.Groups())
	case len(c.Factor) != c.Rows*c.Supers() ||
		c.Offset != nil && len(c.OffsetFactor) != len(c.Factor):
		return fmt.Errorf("%d and %d factors for %d x %d", len(c.Factor), len(c.OffsetFactor),
			c.Rows, c.Supers())
	case c.Order != nil && len(c.Order) != c.Cols:
		return fmt.Errorf("the order of %d columns of %d", len(c.Order), c.Cols)
	}
	for _, v := range c.Order {
		if v < 0 || int(v) >= c.Cols {
			return fmt.Errorf("column %d of %d in the order of columns", v, c.Cols)
		}
	}
	return nil
}

// Number is what a code stands for.
func (c *Codes) Number(code byte) float32 {
	switch c.Type {
	case Code4:
		return c.Values[code&15]
	case Code8:
		return float32(int8(code))
	}
	return e4m3(code)
}

// e4m3 decodes a number of 8 bits; 0x7f and 0xff are NaN.
func e4m3(b byte) float32 {
	exponent, mantissa := int(b>>3&15), float64(b&7)
	v := math.Ldexp(8+mantissa, exponent-10)
	switch {
	case b&0x7f == 0x7f:
		v = math.NaN()
	case exponent == 0:
		v = math.Ldexp(mantissa, -9)
	}
	if b&0x80 != 0 {
		v = -v
	}
	return float32(v)
}
