package attached

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// program is a text like code: pieces of any length, each with a number of four bytes that says how
// far something is that lies behind moved.
func program(seed uint64, pieces int, moved uint32) (b []byte) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range pieces {
		for range 20 + r.IntN(60) {
			b = append(b, byte(r.IntN(256)))
		}
		b = binary.LittleEndian.AppendUint32(b, r.Uint32N(1<<20)+moved)
	}
	return b
}

// TestDelta undoes deltas of programs that are alike in some way.
func TestDelta(t *testing.T) {
	base := program(1, 2000, 0)
	var shuffled []byte
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		at := r.IntN(len(base) - 400)
		shuffled = append(shuffled, base[at:at+r.IntN(400)]...)
		shuffled = append(shuffled, random(r.IntN(5), byte(at))...)
	}
	for name, c := range map[string]struct {
		base, program []byte
		most          int // bytes that are not 0, moves among them
	}{
		"equal":     {base, base, 10},
		"moved":     {base, slices.Concat(random(501, 3), program(1, 2000, 4096)), 9000},
		"shuffled":  {base, shuffled, 12000},
		"other":     {base, random(7001, 4), 7100},
		"short":     {base, random(3, 5), 10},
		"empty":     {base, nil, 0},
		"of none":   {nil, random(100, 6), 110},
		"repeated":  {bytes.Repeat(base[:100], 50), bytes.Repeat(base[:100], 120), 100},
		"zeros":     {make([]byte, 10000), make([]byte, 70001), 2000},
		"beginning": {base, base[:100], 10},
		"end":       {base, base[len(base)-1001:], 10},
	} {
		moves, numbers, rest := delta(c.base, c.program)
		got, err := undo(c.base, moves, numbers, rest, len(c.program))
		if err != nil || !bytes.Equal(got, c.program) {
			t.Errorf("%s: %d bytes instead of %d, %v", name, len(got), len(c.program), err)
		}
		all := slices.Concat(moves, numbers, rest)
		if n := len(all) - bytes.Count(all, []byte{0}); n > c.most {
			t.Errorf("%s: %d bytes that are not 0, %d at most", name, n, c.most)
		}
	}
}

// FuzzUndo wants an error or some program of whatever it is given.
func FuzzUndo(f *testing.F) {
	base := program(1, 5, 0)
	moves, numbers, rest := delta(base, program(1, 4, 7))
	f.Add(moves, numbers, rest)
	f.Add([]byte{1, 0}, []byte{1}, []byte{})
	f.Add(binary.AppendVarint([]byte{1, 0}, -5), []byte{1, 1}, []byte{})
	f.Fuzz(func(t *testing.T, moves, numbers, rest []byte) {
		got, err := undo(base, moves, numbers, rest, 100)
		if err != nil && !errors.Is(err, errDelta) || len(got) > len(numbers)+len(rest) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}
