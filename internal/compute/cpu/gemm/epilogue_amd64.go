package gemm

// runVector computes the columns that fill vectors of eight and returns their number.
func (e *epilogue) runVector() int {
	if e.cols < 8 || e.rows < 1 {
		return 0
	}
	switch {
	case e.streams && e.chunks == 1 && e.add == nil && (uintptr(e.dst)|e.dstStride)%32 == 0:
		epilogueStream(e)
	case e.chunks == 1:
		epilogue1(e)
	case e.chunks == 2:
		epilogue2(e)
	case e.chunks == 4:
		epilogue4(e)
	case e.wide && e.cols >= 16:
		epilogue8x512(e)
		return e.cols &^ 15
	default:
		epilogue8(e)
	}
	return e.cols &^ 7
}

// The tree sum of 1, 2, 4 or 8 chunks over cols&^7 columns, at least 8, and at least one row, with
// AVX2.
//
//go:noescape
func epilogue1(e *epilogue)

// epilogueStream is epilogue1 without an addend, past the caches: dst and its stride are multiples
// of 32.
//
//go:noescape
func epilogueStream(e *epilogue)

//go:noescape
func epilogue2(e *epilogue)

//go:noescape
func epilogue4(e *epilogue)

//go:noescape
func epilogue8(e *epilogue)

// epilogue8x512 is epilogue8 over cols&^15 columns, at least 16, with AVX-512.
//
//go:noescape
func epilogue8x512(e *epilogue)
