package layers

// SideBySide is what is made of several tensors of a width: of each row their rows, one after the
// other.
type SideBySide struct {
	Tensor
	*rank
	count, width int
}

// SideBySide makes room for count tensors of a width.
func (l *Loader) SideBySide(count, width int) *SideBySide {
	l.Own(count * width)
	return &SideBySide{rank: l.rank, count: count, width: width}
}

// Begin makes room for so many rows, to be put.
func (y *SideBySide) Begin(rows int) { y.dev.Resize(&y.Tensor, rows, y.count*y.width) }

// Put makes x the tensor of a number, or as many from that one on as x has side by side.
func (y *SideBySide) Put(i int, x *Tensor) {
	y.dev.Copy(y.Columns(i*y.width, x.Width), x.All())
}
