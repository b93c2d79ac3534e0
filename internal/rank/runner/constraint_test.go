package runner

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// TestGrammarNotReady samples for a request whose grammar is not compiled yet: its token is
// pending, and so is what a plan in flight samples after it, while its neighbour has its tokens.
// Introduced again, with what it had said before, it goes on within the grammar.
func TestGrammarNotReady(t *testing.T) {
	r, o := newRunner(t, true)
	compiled := make(chan struct{})
	r.opt.Grammars = grammars.New(func() (*constrain.Vocabulary, error) {
		<-compiled
		letters := make([][]byte, vocab)
		for i := range letters {
			letters[i] = []byte{byte('a' + i%26)}
		}
		return constrain.NewVocabulary(letters, nil), nil
	}, 1)
	defer r.opt.Grammars.Close()
	spec := constrain.Spec{Kind: constrain.Regex, Text: "b[cd]e"}
	begin := func(id uint64, text []int32, promptLen uint32) *step.Plan {
		p := plan(id, piece{1, 0, uint32(len(text)), prompt, []uint32{1}})
		p.New = []step.NewRequest{{Slot: 1, PromptLen: promptLen, Tokens: text, Params: greedy(),
			Constraint: spec}}
		return p
	}
	text := tokens(3, 1)
	p := begin(1, text, 3)
	p.New = append(p.New, step.NewRequest{Slot: 2, PromptLen: 3, Tokens: text, Params: greedy()})
	beside := plan(0, piece{2, 0, 3, prompt, []uint32{2}})
	p.Rows, p.Blocks = append(p.Rows, beside.Rows...), append(p.Blocks, beside.Blocks...)
	res := execute(t, r, o, p)
	if res.Token[0] != sample.Pending || res.Token[1] != follow(text) {
		t.Fatalf("%+v", res)
	}
	res = execute(t, r, o, plan(2, piece{1, 3, 1, sampled, nil}))
	if res.Token[0] != sample.Pending {
		t.Fatalf("after a pending token: %+v", res)
	}
	close(compiled)
	g := r.opt.Grammars.Start(spec, nil)
	<-g.Done()
	if res = execute(t, r, o, plan(3, piece{1, 4, 1, sampled,
		nil})); res.Token[0] != sample.Pending {
		t.Fatalf("after two pending tokens: %+v", res)
	}
	again := begin(4, append(text, 1), 3) // it had said "b"
	again.Free = []uint32{1}
	if res = execute(t, r, o, again); res.Token[0]%26 != 2 && res.Token[0]%26 != 3 {
		t.Fatalf("%+v is neither c nor d", res)
	}
	if res = execute(t, r, o, plan(5, piece{1, 4, 1, sampled, nil})); res.Token[0]%26 != 4 {
		t.Fatalf("%+v is not e", res)
	}
	// It is complete, and the request has no token that ends it.
	if res = execute(t, r, o, plan(6, piece{1, 5, 1, sampled, nil})); res.Token[0] != sample.Stuck {
		t.Fatalf("%+v after the end", res)
	}
}
