package schedule

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/link/step"
)

// headed is a scheduler whose ranks guess by a head, always right or always wrong.
type headed struct {
	*testing.T
	s     *Scheduler
	right bool
	// rows and seen count tokens of plans, and those of requests that a head is shown.
	rows, seen int
	// full counts plans of as many requests as are not guessed about.
	full int
}

func newHeaded(t *testing.T, right bool) *headed {
	t.Helper()
	s, err := New(Config{MaxSeqs: 16, MaxTokens: 64, MaxModelLen: 4096, BlockSize: 16, Blocks: 1024,
		ChunkedPrefill: true, MaxInFlight: 2, Draft: draft.Config{Tokens: 3, Min: 1, Max: 1,
			Model: true, Head: true, MaxLen: 4096, Rows: 8}})
	if err != nil {
		t.Fatal(err)
	}
	return &headed{T: t, s: s, right: right}
}

// run runs requests of n tokens after as many of a prompt, until they end.
func (h *headed) run(requests, n int) {
	h.Helper()
	for i := range requests {
		q := &Request{Key: uint64(1 + i), Prompt: make([]int32, n), Params: greedy}
		q.Params.MaxTokens = int32(n)
		h.s.Add(q)
	}
	var p step.Plan
	for full := false; h.s.Schedule(&p); full = h.s.Running() >= h.s.config.Draft.Rows {
		if full && len(p.Rows) >= h.s.config.Draft.Rows {
			if h.full++; len(p.Guess) > 0 {
				h.Fatalf("a full batch has guesses: %v", p.Guess)
			}
		}
		r := step.Result{Plan: p.ID}
		drafts := p.Drafts
		for _, row := range p.Rows {
			h.rows += int(row.Count)
			own := drafts[:row.Drafts()]
			drafts = drafts[len(own):]
			ask := slices.IndexFunc(p.Guess, func(g step.Guess) bool { return g.Slot == row.Slot })
			if ask >= 0 {
				h.seen += int(row.Count)
			}
			if !row.Sample {
				continue
			}
			r.Append(row.Slot, 1)
			for range own {
				if h.right {
					r.Extend(1)
				}
			}
			if ask >= 0 && p.Guess[ask].Tokens > 0 {
				d := step.AddDrafts(&r.Guessed, row.Slot)
				for range p.Guess[ask].Tokens {
					token := int32(2)
					if h.right {
						token = 1
					}
					d.Tokens = append(d.Tokens, token)
				}
			}
		}
		if err := h.s.Check(&r); err != nil {
			h.Fatal(err)
		}
		h.s.Update(&r, nil)
	}
}

// TestHeadsSeeWhatTheyNeed shows a head all rows of requests while its guesses are right, few of
// those where they are wrong, and none of a full batch.
func TestHeadsSeeWhatTheyNeed(t *testing.T) {
	right := newHeaded(t, true)
	for range 20 {
		right.run(1, 200)
	}
	if right.seen != right.rows {
		t.Errorf("a head that is right sees %d of %d rows", right.seen, right.rows)
	}
	wrong := newHeaded(t, false)
	for range 20 {
		wrong.run(1, 200)
	}
	// The first request whole, of others one a prompt and what is near its guesses.
	if wrong.seen == 0 || wrong.seen > wrong.rows/8 {
		t.Errorf("a head that is wrong sees %d of %d rows", wrong.seen, wrong.rows)
	}
	for _, h := range []*headed{right, wrong} {
		h.rows, h.seen, h.full = 0, 0, 0
		h.run(16, 100)
		if h.full == 0 {
			t.Error("no batch was full")
		}
	}
	if wrong.seen > wrong.rows/16 {
		t.Errorf("of a full batch a head that is wrong sees %d of %d rows", wrong.seen, wrong.rows)
	}
}
