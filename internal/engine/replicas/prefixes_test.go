package replicas

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
)

var seed = maphash.MakeSeed()

// tokens is a prompt that begins with the first shared tokens of kind 0 and goes on as kind says.
func tokens(n, shared, kind int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(i)
		if i >= shared {
			list[i] += int32(1000 * kind)
		}
	}
	return list
}

func TestBeginnings(t *testing.T) {
	of := func(salt string, prompt []int32) []beginning {
		return beginnings(nil, seed, salt, prompt, 16)
	}
	var lengths, sum []int
	total := 0
	for _, b := range of("", tokens(700, 700, 0)) {
		lengths = append(lengths, b.tokens)
		total += b.step
		sum = append(sum, total)
	}
	want := []int{16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 384,
		512, 640}
	if !slices.Equal(lengths, want) || !slices.Equal(sum, want) {
		t.Errorf("lengths %v, sums of steps %v", lengths, sum)
	}
	for n, want := range map[int]int{0: 0, 1: 0, 16: 0, 17: 1, 32: 1, 33: 2} {
		if got := len(of("", tokens(n, n, 0))); got != want {
			t.Errorf("a prompt of %d tokens has %d beginnings, want %d", n, got, want)
		}
	}
	long := of("", tokens(700, 700, 0))
	for shared, want := range map[int]int{0: 0, 15: 0, 16: 1, 100: 6, 256: 16, 383: 16, 384: 17} {
		equal := 0
		for i, b := range of("", tokens(700, shared, 3)) {
			if b.hash == long[i].hash {
				equal++
			}
		}
		if equal != want {
			t.Errorf("of prompts that share %d tokens %d beginnings are equal, want %d", shared,
				equal, want)
		}
	}
	if of("a", tokens(40, 40, 0))[0].hash == of("b", tokens(40, 40, 0))[0].hash {
		t.Error("salts do not tell prompts apart")
	}
}

func TestPrefixes(t *testing.T) {
	of := func(kind int) []beginning { return beginnings(nil, seed, "", tokens(65, 32, kind), 16) }
	p := newPrefixes(1024)
	if got := p.match(of(1)); got != 0 {
		t.Errorf("an empty cache has %d tokens", got)
	}
	p.add(of(1))
	if got := p.match(of(1)); got != 64 {
		t.Errorf("%d tokens of the prompt that was added", got)
	}
	if got := p.match(of(2)); got != 32 {
		t.Errorf("%d tokens of one that shares 32", got)
	}
	p.clear()
	if got := p.match(of(1)); got != 0 {
		t.Errorf("%d tokens after the cache was lost", got)
	}
}

// TestPrefixesAreBounded: whatever is sent, what is remembered is at least the newest half of the
// cache's size and never more than all of it; outputs take their part.
func TestPrefixesAreBounded(t *testing.T) {
	const capacity, length = 4096, 64
	p := newPrefixes(capacity)
	rng := rand.New(rand.NewPCG(3, 9))
	var sent [][]beginning
	for i := range 2000 {
		sent = append(sent, beginnings(nil, seed, "", tokens(length+1, 0, i+1), 16))
		p.add(sent[i])
		if held := (len(p.young) + len(p.old)) * 16; held > capacity {
			t.Fatalf("%d tokens are remembered of %d", held, capacity)
		}
		newest := sent[max(0, len(sent)-capacity/2/length):]
		if got := p.match(newest[rng.IntN(len(newest))]); got != length {
			t.Fatalf("prompt %d: %d tokens of one of the newest", i, got)
		}
	}
	// What is used again and again stays.
	for i := range 2000 {
		p.add(sent[0])
		p.add(beginnings(nil, seed, "", tokens(length+1, 0, 5000+i), 16))
		if got := p.match(sent[0]); got != length {
			t.Fatalf("%d tokens of a prompt in use", got)
		}
	}
	p.spend(capacity)
	p.spend(capacity)
	if got := p.match(sent[0]); got != 0 {
		t.Errorf("%d tokens after outputs have filled the cache twice", got)
	}
}
