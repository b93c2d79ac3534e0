package layers

// SideBySide is what is made of several tensors of a width: of each row their rows, one after the
// other.
type SideBySide struct {
	Tensor
	*rank
	count int
}

// SideBySide makes room for count tensors of a width.
func (l *Loader) SideBySide(count, width int) *SideBySide {
	l.Own(count * width)
	return &SideBySide{rank: l.rank, count: count}
}

// Put makes x one of them, by its number; the first one says how many rows there are.
func (y *SideBySide) Put(i int, x *Tensor) {
	if i == 0 {
		y.dev.Resize(&y.Tensor, x.Rows, y.count*x.Width)
	}
	y.dev.Copy(y.Columns(i*x.Width, x.Width), x.All())
}
