package schedule

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/link/step"
)

// TestComputedWhileFetching wants ranks that load blocks of a request taken to be busy with it.
func TestComputedWhileFetching(t *testing.T) {
	s, err := New(Config{MaxSeqs: 2, MaxTokens: 64, MaxModelLen: 64, BlockSize: 16, Blocks: 8,
		PrefixCaching: true, ChunkedPrefill: true, Offload: true})
	if err != nil {
		t.Fatal(err)
	}
	prompt := make([]int32, 40)
	chain := kvcache.NewChain("")
	chain.Next(prompt[:16])
	name := chain.Next(prompt[16:32])
	for key := range uint64(2) {
		q := &Request{Key: key, Prompt: prompt, Params: sample.Params{MaxTokens: 4, EOS: -1,
			Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs}}
		if key == 1 {
			q.Source, q.Remote = SourceOf(name), 32
			q.Salt = "other" // else it would find what the first one computes
		}
		s.Add(q)
	}
	var p step.Plan
	if !s.Schedule(&p) || len(p.Rows) != 1 {
		t.Fatalf("%+v", p)
	}
	if f := s.Fetches(nil); len(f) != 1 || f[0].Key != 1 || len(f[0].Digests) != 2 {
		t.Fatalf("%+v", f)
	}
	if got := s.Computed(nil); !slices.Equal(got, []uint64{0, 1}) {
		t.Errorf("while it is loaded: %v", got)
	}
	s.Fetched(1, 1)
	if got := s.Computed(nil); !slices.Equal(got, []uint64{0, 1}) {
		t.Errorf("once it was loaded: %v", got)
	}
	if st := s.Stats(); st.Waiting != 1 {
		t.Errorf("%+v", st)
	}
}

// TestLoadedTokens counts those of a prompt that come from elsewhere, of which only the last are
// fetched where there is a window.
func TestLoadedTokens(t *testing.T) {
	for window, blocks := range map[int]int{0: 6, 20: 2} {
		s, err := New(Config{MaxSeqs: 2, MaxTokens: 128, MaxModelLen: 128, BlockSize: 16,
			Blocks: 16, PrefixCaching: true, ChunkedPrefill: true, Offload: true, Window: window})
		if err != nil {
			t.Fatal(err)
		}
		s.Add(&Request{Key: 1, Prompt: make([]int32, 100), Source: 1, Remote: 96,
			Params: sample.Params{MaxTokens: 4, EOS: -1, Logprobs: sample.NoLogprobs,
				PromptLogprobs: sample.NoLogprobs}})
		var p step.Plan
		s.Schedule(&p)
		f := s.Fetches(nil)
		if len(f) != 1 || len(f[0].Blocks) != blocks {
			t.Fatalf("window %d: %+v", window, f)
		}
		s.Fetched(1, blocks)
		if !s.Schedule(&p) {
			t.Fatal("no plan")
		}
		if st := s.Stats(); st.ExternalQueries != 100 || st.ExternalHits != 96 {
			t.Errorf("window %d: %d tokens of %d came, not 96 of 100", window, st.ExternalHits,
				st.ExternalQueries)
		}
	}
}
