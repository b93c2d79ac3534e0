package compute

// RowForm is how a row of activations travels to a product of another rank: as little of it as the
// product reads, so that the product's bits are those of the row itself.
//
// Forms from 8 on are a product's that rounds rows to int8: the row is cut into spans of as many
// columns as the form's number, as long as it has so many, then of 32, then what is left. A span is
// the largest magnitude in it, a float32, and of each column one byte, which is 127 times its value
// divided by that, rounded.
type RowForm uint8

const (
	// FloatRow is the float32 themselves.
	FloatRow RowForm = iota
	// BF16Row is bfloat16, rounded to nearest even; FlushedBF16Row is that of rows whose denormals
	// have become zero. Two columns are one word, the first in its lower half.
	BF16Row
	FlushedBF16Row
)

// Sound tells whether there is such a form of rows of so many columns.
func (f RowForm) Sound(width int) bool {
	switch {
	case f == FloatRow:
		return true
	case f <= FlushedBF16Row:
		return width%2 == 0
	}
	return f >= 8 && f <= 128 && f%8 == 0 && width%8 == 0
}

// Words is how many float32 a row of so many columns takes.
func (f RowForm) Words(width int) int {
	switch f {
	case FloatRow:
		return width
	case BF16Row, FlushedBF16Row:
		return width / 2
	}
	n := width / 4
	for width > 0 {
		width -= f.Span(width)
		n++
	}
	return n
}

// Span is how many columns the next span has of those that are left.
func (f RowForm) Span(left int) int {
	if left >= int(f) {
		return int(f)
	}
	return min(left, 32)
}
