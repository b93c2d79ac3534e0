package attached

import (
	"encoding/binary"
	"errors"
)

// A delta makes one program of another one as bsdiff does (Percival 2003, "Naive differences of
// executable code"): pieces of the first are added to numbers that are mostly 0, for code that has
// moved differs in addresses alone, and by the same numbers again and again. Its parts are moves,
// those numbers, and the bytes between pieces.
//
// A move is three varints: how many bytes are added to the first program's, how many follow that
// are there as they are, and how far the next piece is from the end of this one, signed.

// seed is how many bytes two programs have in common where a piece is found. The first program is
// looked up at each step bytes, of at most tries places that look alike.
const (
	seed  = 16
	step  = 4
	tries = 24
)

// index is where the first program has each seed: heads by hash, and the place before each, by
// place, in steps and one more.
type index struct {
	base         []byte
	heads, chain []int32
}

const headBits = 22

func hash(b []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15
	a, c := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return ((a ^ c*odd>>7) * odd) >> (64 - headBits)
}

func newIndex(base []byte) *index {
	x := &index{base: base, heads: make([]int32, 1<<headBits),
		chain: make([]int32, len(base)/step+1)}
	for at := 0; at+seed <= len(base); at += step {
		h := hash(base[at:])
		x.chain[at/step], x.heads[h] = x.heads[h], int32(at/step+1)
	}
	return x
}

// common is how many bytes two texts begin with alike.
func common(a, b []byte) (n int) {
	most := min(len(a), len(b))
	for n+8 <= most && binary.LittleEndian.Uint64(a[n:]) == binary.LittleEndian.Uint64(b[n:]) {
		n += 8
	}
	for n < most && a[n] == b[n] {
		n++
	}
	return n
}

// find is where the longest text begins that b begins with, 0 bytes long where none is found.
func (x *index) find(b []byte) (at, length int) {
	if len(b) < seed {
		return 0, 0
	}
	next := x.heads[hash(b)]
	for range tries {
		if next == 0 {
			break
		}
		place := int(next-1) * step
		if n := common(x.base[place:], b); n > length && n >= seed {
			at, length = place, n
		}
		next = x.chain[next-1]
	}
	return at, length
}

// better is how long a piece is worth going on with where a number in it is 0 if same: twice as
// many are than are not.
func better(most int, same func(i int) bool) (length int) {
	score, best := 0, 0
	for i := range most {
		if same(i) {
			score++
		}
		if 2*score-(i+1) > best {
			best, length = 2*score-(i+1), i+1
		}
	}
	return length
}

// delta makes the parts of which undo makes program again.
func delta(base, program []byte) (moves, numbers, rest []byte) {
	x := newIndex(base)
	same := func(old, now int) bool {
		return old >= 0 && old < len(base) && base[old] == program[now]
	}
	// The piece at hand begins at from, and at start of the base; the next one at now, and at at.
	from, start, now, at, length := 0, 0, 0, 0, 0
	for now < len(program) {
		offset, alike, seen := start-from, 0, now+length
		for now += length; now < len(program); now++ {
			at, length = x.find(program[now:])
			for ; seen < now+length; seen++ {
				if same(seen+offset, seen) {
					alike++
				}
			}
			// The piece at hand goes on where it has as much as another one, or nearly.
			if length != 0 && length == alike || length > alike+8 {
				break
			}
			if same(now+offset, now) {
				alike--
			}
		}
		if now < len(program) && length == alike {
			continue
		}
		ahead := better(min(now-from, len(base)-start), func(i int) bool {
			return base[start+i] == program[from+i]
		})
		back := 0
		if now < len(program) {
			back = better(min(now-from, at), func(i int) bool {
				return base[at-1-i] == program[now-1-i]
			})
		}
		if both := from + ahead - (now - back); both > 0 {
			// Bytes that both pieces have go to the one that has more of them, from one on.
			score, best, own := 0, 0, 0
			for i := range both {
				if same(start+ahead-both+i, from+ahead-both+i) {
					score++
				}
				if same(at-back+i, now-back+i) {
					score--
				}
				if score > best {
					best, own = score, i+1
				}
			}
			ahead, back = ahead+own-both, back-own
		}
		for i := range ahead {
			numbers = append(numbers, program[from+i]-base[start+i])
		}
		between := program[from+ahead : now-back]
		rest = append(rest, between...)
		moves = binary.AppendUvarint(moves, uint64(ahead))
		moves = binary.AppendUvarint(moves, uint64(len(between)))
		moves = binary.AppendVarint(moves, int64(at-back-start-ahead))
		from, start = now-back, at-back
	}
	return moves, numbers, rest
}

// addTo adds to each byte, of which most get 0.
func addTo(bytes, numbers []byte) {
	for i := 0; i < len(bytes); {
		if i+8 <= len(bytes) && binary.LittleEndian.Uint64(numbers[i:]) == 0 {
			i += 8
			continue
		}
		bytes[i] += numbers[i]
		i++
	}
}

var errDelta = errors.New("a move leads beyond what there is")

// undo makes the program of size bytes that delta was given.
func undo(base, moves, numbers, rest []byte, size int) ([]byte, error) {
	program := make([]byte, 0, size)
	for start := 0; len(moves) > 0; {
		ahead, a := binary.Uvarint(moves)
		between, b := binary.Uvarint(moves[max(a, 0):])
		move, c := binary.Varint(moves[max(a, 0)+max(b, 0):])
		if a <= 0 || b <= 0 || c <= 0 || start < 0 || start > len(base) ||
			ahead > uint64(min(len(base)-start, len(numbers))) || between > uint64(len(rest)) {
			return nil, errDelta
		}
		moves = moves[a+b+c:]
		piece := len(program)
		program = append(program, base[start:start+int(ahead)]...)
		addTo(program[piece:], numbers)
		program = append(program, rest[:between]...)
		numbers, rest = numbers[ahead:], rest[between:]
		start += int(ahead) + int(move)
	}
	return program, nil
}
