package tokenizer

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// TestTokenIndex renames tokens of a vocabulary and adds to it, beside a map, until its table has
// grown and is full of slots of tokens that are gone.
func TestTokenIndex(t *testing.T) {
	v, err := newVocabulary("0123", []uint32{1, 2, 3, 4}, []int32{0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int32{"0": 0, "1": 1, "2": 2, "3": 3}
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		id, text := r.Int32N(60), strconv.Itoa(r.IntN(90))
		if other, taken := want[text]; taken && other != id {
			continue
		}
		if v.has(id) {
			delete(want, v.text[id])
			err = v.rename(id, text)
		} else {
			err = v.add(id, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		want[text] = id
	}
	if v.size() != len(want) || len(want) < 40 {
		t.Errorf("there are %d tokens, want %d, of 40 at least", v.size(), len(want))
	}
	for n := range 90 {
		text := strconv.Itoa(n)
		id, ok := v.id(text)
		if wantID, wantOK := want[text]; ok != wantOK || ok && id != wantID {
			t.Errorf("token %s has id %d, %v, want %d, %v", text, id, ok, wantID, wantOK)
		}
	}
}
