package bandwidth

import "testing"

// TestReader reads what it says it does, at a rate between that of a disk and that of any memory.
func TestReader(t *testing.T) {
	for _, c := range []struct{ threads, size, want int }{
		{1, 1 << 20, 1 << 20}, {3, 1000, 3 * 256}, {2, 0, 0},
	} {
		r, err := NewReader(c.threads, c.size)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Bytes(); c.want != 0 && n != c.want || c.want == 0 && n < leastRead {
			t.Errorf("%d threads, %d bytes: %d are read", c.threads, c.size, n)
		}
		if gb := r.Rate() / 1e9; c.size == 0 && (gb < 0.1 || gb > 20000) {
			t.Errorf("%g GB/s", gb)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
