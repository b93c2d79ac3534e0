package generate

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// reasoningTokens counts the tokens of an answer's reasoning, those of its tags included: as
// OpenAI's usage has it. The count does not depend on how the answer was cut into deltas.
type reasoningTokens struct {
	on bool
	// offsets are where tokens begin in the text, until it is known where the reasoning ends.
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
	var end int
	if end, t.settled = p.Thought(); end == math.MaxInt {
		t.count = len(t.offsets)
	} else {
		t.count, _ = slices.BinarySearch(t.offsets, end)
	}
	if t.settled {
		t.offsets = nil
	}
}
