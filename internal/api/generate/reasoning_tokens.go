package generate

import (
	"slices"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// reasoningTokens counts the tokens of an answer's reasoning, those of its tags included: as
// OpenAI's usage has it. The count does not depend on how the answer was cut into deltas.
type reasoningTokens struct {
	on bool
	// offsets are where tokens begin in the text, until it is known where the reasoning is.
	offsets []int
	count   int
	settled bool
}

// add notes the tokens of a delta, whose text is read afterwards.
func (t *reasoningTokens) add(d *engine.Delta) {
	if t.on && !t.settled {
		t.offsets = append(t.offsets, d.TextOffsets...)
	}
}

// read counts them by what has been read of the text.
func (t *reasoningTokens) read(p *output.Parser) {
	if !t.on || t.settled {
		return
	}
	var spans []output.Span
	spans, t.settled = p.Thoughts()
	t.count = 0
	for _, s := range spans {
		from, _ := slices.BinarySearch(t.offsets, s.From)
		to, _ := slices.BinarySearch(t.offsets, s.To)
		t.count += to - from
	}
	if t.settled {
		t.offsets = nil
	}
}
