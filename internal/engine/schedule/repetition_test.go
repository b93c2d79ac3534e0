package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// repeatsItself says the same as repeats.find of a whole output, by looking at each copy.
func repeatsItself(output []int32, want Repetition) bool {
	for p := max(1, want.MinPattern); p <= want.MaxPattern && p*want.MinCount <= len(output); p++ {
		tail, same := output[len(output)-p:], true
		for i := 2; i <= want.MinCount; i++ {
			same = same && slices.Equal(tail, output[len(output)-i*p:][:p])
		}
		if same && want.MinCount >= 2 {
			return true
		}
	}
	return false
}

// TestRepetition: the place where an output ends, by hand.
func TestRepetition(t *testing.T) {
	for _, c := range []struct {
		output []int32
		want   Repetition
		end    int // tokens until it ends, 0 for never
	}{
		{[]int32{5, 5, 5, 5}, Repetition{}, 0},
		{[]int32{5, 5, 5, 5}, Repetition{MaxPattern: 1, MinCount: 3}, 3},
		{[]int32{1, 2, 1, 2, 1, 2, 1}, Repetition{MinPattern: 1, MaxPattern: 2, MinCount: 3}, 6},
		{[]int32{1, 2, 1, 2, 1, 2, 1}, Repetition{MaxPattern: 1, MinCount: 2}, 0},
		{[]int32{7, 1, 2, 3, 1, 2, 3}, Repetition{MaxPattern: 3, MinCount: 2}, 7},
		{[]int32{5, 5, 5, 5, 5}, Repetition{MinPattern: 2, MaxPattern: 2, MinCount: 2}, 4},
		{[]int32{1, 2, 3, 1, 2, 4, 1, 2}, Repetition{MaxPattern: 3, MinCount: 2}, 0},
		{[]int32{1, 2, 9, 1, 2, 1, 2, 9}, Repetition{MinPattern: 2, MaxPattern: 4, MinCount: 2}, 7},
	} {
		end, r := 0, repeats{}
		for n := 1; n <= len(c.output) && end == 0; n++ {
			if r.find(c.output[:n], c.want, 1000) {
				end = n
			}
		}
		if end != c.end {
			t.Errorf("%v with %+v ends after %d tokens, want %d", c.output, c.want, end, c.end)
		}
	}
}

// TestRepetitionFollows: taken in token by token, or all at once as after a loss of all state, an
// output repeats itself where a look at each copy says so.
func TestRepetitionFollows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 2000 {
		want := Repetition{MinPattern: rng.IntN(4), MaxPattern: 4 + rng.IntN(4), MinCount: 2 +
			rng.IntN(4)}
		output := make([]int32, 1+rng.IntN(40))
		for i := range output {
			if output[i] = int32(rng.IntN(3)); i > 3 && rng.IntN(6) > 0 {
				output[i] = output[i-2-i%2]
			}
		}
		r := repeats{}
		for n := 1; n <= len(output); n++ {
			got, again := r.find(output[:n], want, len(output)), (&repeats{}).find(output[:n], want,
				len(output))
			if is := repeatsItself(output[:n], want); got != is || again != is {
				t.Fatalf("%v with %+v: %v, at once %v, want %v", output[:n], want, got, again, is)
			}
			if got {
				found++
			}
		}
	}
	if found < 500 {
		t.Errorf("only %d outputs repeated themselves", found)
	}
}

// TestRepetitionEnds: what else ends an output at the same token goes first, as in vLLM; before
// MinTokens nothing is a repetition.
func TestRepetitionEnds(t *testing.T) {
	for _, c := range []struct {
		params sample.Params
		finish sample.Finish
		tokens int
	}{
		{sample.Params{MaxTokens: 9, EOS: -1}, sample.FinishRepetition, 3},
		{sample.Params{MaxTokens: 3, EOS: -1}, sample.FinishLength, 3},
		{sample.Params{MaxTokens: 9, EOS: -1, MinTokens: 5}, sample.FinishRepetition, 5},
		{sample.Params{MaxTokens: 9, EOS: 5, MinTokens: 3}, sample.FinishStop, 1},
	} {
		t.Run(fmt.Sprint(c.finish, c.tokens), func(t *testing.T) {
			r := Request{Params: c.params, Repetition: Repetition{MaxPattern: 2, MinCount: 3}}
			if n, finish, stop := r.accept([]int32{5, 5, 5, 5, 5, 5}, 100); n != c.tokens ||
				finish != c.finish || stop != -1 {
				t.Errorf("%d tokens, %v, stop %d", n, finish, stop)
			}
		})
	}
}
