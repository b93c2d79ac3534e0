package openai

import (
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/output"
)

// TestFoldInProportion: pieces of thoughts and of calls are added up in memory in proportion to
// their text, however many they are.
func TestFoldInProportion(t *testing.T) {
	const pieces, text = 20_000, "word "
	req := &generate.Chat{}
	req.TopLogprobs = sample.NoLogprobs
	for _, kind := range []output.Kind{output.Reasoning, output.Arguments} {
		f := &chatFold{chatAnswer: chatAnswer{req: req, g: &generate.Generation{
			Choices: make([]generate.Choice, 1)}}}
		if err := f.open(); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		add := func(p output.Part) {
			if err := f.add(&chatPiece{part: &p}); err != nil {
				t.Fatal(err)
			}
		}
		add(output.Part{Kind: output.Call})
		for range pieces {
			add(output.Part{Kind: kind, Text: text})
		}
		runtime.ReadMemStats(&after)
		// Slices that double take a few times the text, and each piece has its part.
		if took := after.TotalAlloc - before.TotalAlloc; took > 60*pieces*uint64(len(text)) {
			t.Errorf("%v: %d bytes allocated for %d of text", kind, took, pieces*len(text))
		}
	}
}
