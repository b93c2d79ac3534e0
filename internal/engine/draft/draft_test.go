package draft

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/link/step"
)

// guess is what a lookup is to find, in the plainest way.
func guess(tokens []int32, unknown, n, least, most int) []int32 {
	longest, found := least-1, 0
	for place := len(tokens) - 1; place >= least; place-- {
		same := 0
		for same < min(place, most) &&
			tokens[place-1-same] == tokens[len(tokens)-1-same] {
			same++
		}
		if same > longest {
			longest, found = same, place
		}
	}
	if found == 0 {
		return nil
	}
	text := slices.Clone(tokens)
	for i := range unknown + n {
		text = append(text, text[found+i])
	}
	return text[len(tokens)+unknown:]
}

// TestLookup compares guesses about texts that grow, with few different tokens or with parts of
// themselves, with those of a search of the whole text. Where many places have equal tokens before
// them only the last ones are compared: a guess is not missed, and a shorter match may be taken.
func TestLookup(t *testing.T) {
	exact, all := 0, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		least := 1 + rng.IntN(3)
		most := least + rng.IntN(4)
		c := Config{Tokens: step.MaxDrafts, Min: least, Max: most}
		var d Drafter
		vocab := 2 + rng.IntN(200)
		var text []int32
		for len(text) < 700 {
			if len(text) > 20 && rng.IntN(3) == 0 {
				from := rng.IntN(len(text) - 10)
				text = append(text, text[from:from+rng.IntN(10)]...)
			}
			text = append(text, int32(rng.IntN(vocab)))
			unknown, n := rng.IntN(3), 1+rng.IntN(9)
			d.pace = pace{begun: true, size: n}
			got := d.Draft(nil, text, unknown, n, &c, nil)
			want := guess(text, unknown, n, least, most)
			if len(got) != len(want) {
				t.Fatalf("seed %d: after %d tokens the guess is %v, not %v", seed, len(text), got,
					want)
			}
			if len(want) > 0 {
				all++
			}
			if len(want) > 0 && slices.Equal(got, want) {
				exact++
			}
		}
	}
	if exact < all*3/4 {
		t.Errorf("%d of %d guesses follow the longest match", exact, all)
	}
}

// TestPace has guesses grow while they are right, and become rare while they are wrong.
func TestPace(t *testing.T) {
	c := Config{Tokens: 24, Min: 1, Max: 3}
	text := slices.Repeat([]int32{1, 2, 3, 4, 5}, 20)
	var d Drafter
	for _, want := range []int{2, 4, 8, 16, 24, 24} {
		got := d.Draft(nil, text, 0, 100, &c, nil)
		if len(got) != want {
			t.Fatalf("%d tokens are guessed, not %d", len(got), want)
		}
		d.Verified(want, want, new(Trials))
	}
	if got := d.Draft(nil, text, 0, 3, &c, nil); len(got) != 3 {
		t.Fatalf("%d tokens are guessed where 3 may be", len(got))
	}
	d.Verified(3, 1, new(Trials))
	if got := d.Draft(nil, text, 0, 100, &c, nil); len(got) != 2 {
		t.Fatalf("%d tokens are guessed after 1 was right", len(got))
	}
	guesses := 0
	for range 2000 {
		if n := len(d.Draft(nil, text, 0, 100, &c, nil)); n > 0 {
			guesses++
			d.Verified(n, 0, new(Trials))
		}
	}
	if guesses < 2000/(longestPause+1) || guesses > 2000/longestPause+8 {
		t.Errorf("%d guesses in 2000 steps, all of them wrong", guesses)
	}
	n := 0
	for n == 0 {
		n = len(d.Draft(nil, text, 0, 100, &c, nil))
	}
	if d.Verified(n, n, new(Trials)); len(d.Draft(nil, text, 0, 100, &c, nil)) == 0 {
		t.Error("nothing is guessed after a guess was right")
	}
}

// TestTrials has a model guess about one request at a time while it is wrong, and about all while
// it is right.
func TestTrials(t *testing.T) {
	trials := NewTrials()
	tried := func(n int) (list []*Drafter) {
		for range n {
			if d := new(Drafter); d.Try(&trials) {
				list = append(list, d)
			}
		}
		return list
	}
	verify := func(d *Drafter, right int) {
		n := 0
		for n == 0 {
			n = d.Ask(4)
		}
		d.FollowModel(nil, make([]int32, n), n)
		d.Verified(n, min(n, right), &trials)
	}
	first := tried(3)
	if len(first) != 3 {
		t.Fatalf("%d of 3 requests are tried before any was judged", len(first))
	}
	for _, d := range first {
		verify(d, 0)
		if !d.Try(&trials) {
			t.Error("a request that is tried is not any more")
		}
	}
	pause := trials.pace.pause
	if got := tried(pause + 1); len(got) != 1 {
		t.Fatalf("%d of %d requests are tried after wrong guesses", len(got), pause+1)
	}
	if got := tried(pause); len(got) != 0 {
		t.Fatalf("%d of %d requests are tried before the one before them was judged", len(got),
			pause)
	}
	one := tried(1)
	if len(one) != 1 {
		t.Fatal("no request is tried after the pause")
	}
	if !one[0].Watches(1) {
		t.Error("a head does not see what its first guess is about")
	}
	verify(one[0], 4)
	if got := tried(3); len(got) != 3 {
		t.Errorf("%d of 3 requests are tried after a right guess", len(got))
	}
	for range 3 {
		verify(one[0], 0)
	}
	if wait := one[0].pace.wait; one[0].Watches(wait) || !one[0].Watches(wait+1) {
		t.Errorf("a head sees what comes %d tokens before a guess", wait)
	}
}

// TestSteadyAllocations guesses without a new allocation once there is room.
func TestSteadyAllocations(t *testing.T) {
	c := Config{Tokens: 8, Min: 2, Max: 5}
	text := make([]int32, 0, 4096)
	for i := range 2000 {
		text = append(text, int32(i%97))
	}
	var d Drafter
	dst := d.Draft(make([]int32, 0, 8), text, 0, 8, &c, nil)
	if n := testing.AllocsPerRun(500, func() {
		text = append(text, int32(len(text)%97))
		dst = d.Draft(dst[:0], text, 0, 8, &c, nil)
		d.Verified(len(dst), len(dst), new(Trials))
	}); n > 0 {
		t.Errorf("%v allocations for each guess", n)
	}
}

// TestVotes has several places decide, of the text and of outputs of others, until those that agree
// are too few.
func TestVotes(t *testing.T) {
	c := Config{Tokens: 24, Min: 1, Max: 24, Votes: 32, Requests: 4, Factor: 2, MinProb: 0.5}
	h := NewHistory(&c)
	h.Add([]int32{1, 2, 3, 4, 5, 6, 7})
	h.Add([]int32{1, 2, 3, 4, 5, 6, 8})
	h.Add([]int32{1, 2, 3, 9, 9})
	draft := func(unknown int, tokens ...int32) []int32 {
		d := Drafter{pace: pace{begun: true, size: 24}}
		return d.Draft(nil, tokens, unknown, 24, &c, h)
	}
	for _, tt := range []struct{ got, want []int32 }{
		{draft(0, 1, 2), []int32{3, 4, 5, 6}}, // twice two tokens; of three outputs two agree
		{draft(0, 1, 2, 3), []int32{4, 5, 6}}, // 7 and 8 have a third each
		{draft(2, 1, 2, 3), []int32{6}},
		{draft(0, 3, 4, 5), []int32{6, 8}}, // of equally many the last one, as half is enough
		{draft(0, 77), nil},
		{draft(0, 6, 5, 6), []int32{8}},
		{draft(0, 60, 61, 60), []int32{61, 60}}, // its own text, which has no end
		{draft(3, 77, 9), nil},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("the guess is %v, not %v", tt.got, tt.want)
		}
	}
	for range 4 {
		h.Add([]int32{50, 51})
	}
	if got := draft(0, 1, 2); got != nil {
		t.Errorf("%v is guessed after what was forgotten", got)
	}
}

// TestHistoryIsBounded adds outputs without end.
func TestHistoryIsBounded(t *testing.T) {
	h := NewHistory(&Config{Min: 1, Max: 4, Votes: 2, Requests: 1 << 30})
	h.tokens = 1000
	for i := range 3000 {
		h.Add(make([]int32, i%1500))
		held := len(h.parts[0].text) + len(h.parts[1].text)
		if held > 2000 || len(h.parts[0].index.levels[0].before) > 1000 {
			t.Fatalf("%d tokens are held after %d outputs", held, i+1)
		}
	}
}

// TestFollow has what others guess keep a pace of its own.
func TestFollow(t *testing.T) {
	var d Drafter
	guess := []int32{1, 2, 3, 4, 5}
	for _, want := range []int{2, 4, 5} {
		got := d.Follow(nil, guess, 9)
		if !slices.Equal(got, guess[:want]) {
			t.Fatalf("%v is followed of %v", got, guess)
		}
		d.Verified(want, want, new(Trials))
	}
	d.Follow(nil, guess, 9)
	d.Verified(5, 0, new(Trials))
	if got := d.Follow(nil, guess, 9); len(got) > 0 {
		t.Errorf("%v is followed after a wrong guess", got)
	}
	c := Config{Tokens: 2, Min: 1, Max: 1}
	if got := d.Draft(nil, []int32{1, 2, 1}, 0, 2, &c, nil); len(got) != 2 {
		t.Errorf("the guess is %v", got)
	}
}
