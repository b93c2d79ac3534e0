package bandwidth

import "testing"

// TestReader reads what it says it does, at a rate between that of a disk and that of any memory.
func TestReader(t *testing.T) {
	for _, c := range []struct{ threads, size, want int }{
		{1, 1 << 20, 1 << 20}, {3, 1000, 3 * 256}, {2, 16 << 20, 16 << 20},
		{2, 0, beyond(LastCacheBytes()) &^ 511},
	} {
		if c.size == 0 && testing.Short() {
			continue // up to a gigabyte
		}
		r, err := NewReader(c.threads, c.size)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Bytes(); n != c.want {
			t.Errorf("%d threads, %d bytes: %d are read", c.threads, c.size, n)
		}
		if gb := r.Rate() / 1e9; c.threads == 2 && (gb < 0.1 || gb > 20000) {
			t.Errorf("%g GB/s", gb)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBeyond wants four times the last cache, within what is affordable.
func TestBeyond(t *testing.T) {
	for cache, want := range map[int]int{0: 128 << 20, 32 << 20: 128 << 20, 50 << 20: 200 << 20,
		260 << 20: 1 << 30} {
		if got := beyond(cache); got != want {
			t.Errorf("a cache of %d bytes: %d are read, want %d", cache, got, want)
		}
	}
}
