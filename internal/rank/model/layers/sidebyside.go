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

// Clear leaves no rows.
func (y *SideBySide) Clear() { y.dev.Resize(&y.Tensor, 0, y.count*y.width) }

// Put makes x one of them, by its number; the first one says how many rows there are.
func (y *SideBySide) Put(i int, x *Tensor) {
	if i == 0 {
		y.dev.Resize(&y.Tensor, x.Rows, y.count*y.width)
	}
	y.dev.Copy(y.Columns(i*y.width, y.width), x.All())
}
