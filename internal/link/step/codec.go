package step

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// The encoding: a version byte, a kind byte, then the fields in the order of the Go types,
// little-endian, without padding. A list is its length as uint32, then its elements. Result.End
// comes after Token, and only when there are more tokens than slots: else every run is one token.
// There is one encoding of every record: a decoder accepts nothing that the encoder would not
// write.
const (
	// Version is the first byte of every record. It changes with the layout; driver and workers are
	// the same binary, so no decoder reads an older one.
	Version = 12

	kindPlan   = 'P'
	kindResult = 'R'
)

// Encoded sizes of records when their lists are empty. A decoder uses them to refuse a length that
// the remaining bytes cannot hold before it makes room for it.
const (
	minParams         = 7*4 + 8 + 5*4 + 3*1 + 6*4 + 3*4
	minNewRequest     = 2*4 + 2*4 + minParams + 1 + 4 + 3*1 + 1 + 2*4
	minLogprobs       = 4 + 12 + 4
	minPromptLogprobs = 4 + 4 + 4
	minPooled         = 4 + 4
	minDrafts         = 4 + 4
	minList           = 4
	rowSize           = 5 * 4
)

// The last word of a Row: Blocks, Source from bit 16 on, and Sample in bit 24.
const (
	blocksMask   = 1<<16 - 1
	sourceShift  = 16
	rowsLastWord = blocksMask | 3<<sourceShift | 1<<24
)

type bias = sample.Bias

// AppendPlan appends the encoding of p to b. Row.Blocks adds up to the length of Plan.Blocks,
// Row.Drafts to that of Plan.Drafts, and every Row.Source is one of the sources above; DecodePlan
// refuses anything else.
func AppendPlan(b []byte, p *Plan) []byte {
	b = slices.Grow(b, 2+8+8*4+4*(len(p.Free)+len(p.Blocks)+len(p.Drafts))+rowSize*len(p.Rows)+
		8*(len(p.Guess)+len(p.Restore)+len(p.Save)))
	b = append(b, Version, kindPlan)
	b = binary.LittleEndian.AppendUint64(b, p.ID)
	b = appendList(b, p.Free)
	b = appendLen(b, len(p.New))
	for i := range p.New {
		b = appendNewRequest(b, &p.New[i])
	}
	b = appendList(b, p.Rows)
	b = appendList(b, p.Blocks)
	b = appendList(b, p.Drafts)
	b = appendList(b, p.Guess)
	return appendList(appendList(b, p.Restore), p.Save)
}

func appendNewRequest(b []byte, q *NewRequest) []byte {
	b = slices.Grow(b, minNewRequest+4*(len(q.Tokens)+len(q.Blocks))+len(q.Constraint.Text))
	b = binary.LittleEndian.AppendUint32(b, q.Slot)
	b = binary.LittleEndian.AppendUint32(b, q.PromptLen)
	b = appendList(b, q.Tokens)
	b = appendList(b, q.Blocks)
	b = appendParams(b, &q.Params)
	c := &q.Constraint
	b = append(b, byte(c.Kind))
	b = append(appendLen(b, len(c.Text)), c.Text...)
	b = appendBool(appendBool(appendBool(b, c.Compact), c.Closed), c.AnyOrder)
	b = append(b, byte(q.Pooling))
	b = binary.LittleEndian.AppendUint32(b, q.Second)
	return binary.LittleEndian.AppendUint32(b, q.Adapter)
}

func appendParams(b []byte, p *sample.Params) []byte {
	b = appendFloat(b, p.Temperature)
	b = appendFloat(b, p.TopP)
	b = appendInt(b, p.TopK)
	b = appendFloat(b, p.MinP)
	b = appendFloat(b, p.RepetitionPenalty)
	b = appendFloat(b, p.PresencePenalty)
	b = appendFloat(b, p.FrequencyPenalty)
	b = binary.LittleEndian.AppendUint64(b, p.Seed)
	b = appendInt(b, p.Logprobs)
	b = appendList(b, p.LogprobTokens)
	b = appendInt(b, p.PromptLogprobs)
	b = appendBool(b, p.Processed)
	b = appendBool(b, p.AsLogits)
	b = appendInt(b, p.MaxTokens)
	b = appendInt(b, p.MinTokens)
	b = appendInt(b, p.EOS)
	b = appendBool(b, p.IgnoreEOS)
	b = appendList(b, p.StopTokens)
	b = appendList(b, p.Withheld)
	b = appendList(b, p.LogitBias)
	b = appendList(b, p.AllowedTokens)
	b = appendLen(b, len(p.BadWords))
	for _, w := range p.BadWords {
		b = appendList(b, w)
	}
	b = appendInt(b, p.ThinkingBudget)
	b = appendList(b, p.ThinkingStart)
	return appendList(b, p.ThinkingEnd)
}

// AppendResult appends the encoding of r to b. Slot and End are equally long, and End divides Token
// into runs; DecodeResult refuses anything else.
func AppendResult(b []byte, r *Result) []byte {
	b = slices.Grow(b, 2+8+7*4+4*(2*len(r.Slot)+len(r.Token)))
	b = append(b, Version, kindResult)
	b = binary.LittleEndian.AppendUint64(b, r.Plan)
	b = appendList(b, r.Slot)
	b = appendList(b, r.Token)
	if len(r.Token) != len(r.Slot) {
		b = appendList(b, r.End)
	}
	b = appendLogprobs(b, r.Logprobs)
	b = appendLen(b, len(r.PromptLogprobs))
	for i := range r.PromptLogprobs {
		p := &r.PromptLogprobs[i]
		b = binary.LittleEndian.AppendUint32(b, p.Slot)
		b = binary.LittleEndian.AppendUint32(b, p.Start)
		b = appendLogprobs(b, p.Entries)
	}
	b = appendLen(b, len(r.Pooled))
	for i := range r.Pooled {
		b = binary.LittleEndian.AppendUint32(b, r.Pooled[i].Slot)
		b = appendList(b, r.Pooled[i].Vector)
	}
	return appendDrafts(appendDrafts(b, r.Forced), r.Guessed)
}

func appendDrafts(b []byte, v []Drafts) []byte {
	b = appendLen(b, len(v))
	for i := range v {
		b = binary.LittleEndian.AppendUint32(b, v[i].Slot)
		b = appendList(b, v[i].Tokens)
	}
	return b
}

func appendLogprobs(b []byte, v []Logprobs) []byte {
	b = appendLen(b, len(v))
	for i := range v {
		l := &v[i]
		b = binary.LittleEndian.AppendUint32(b, l.Slot)
		b = appendInt(b, l.Sampled.Token)
		b = appendInt(b, l.Sampled.Rank)
		b = appendFloat(b, l.Sampled.Logprob)
		b = appendList(b, l.Top)
	}
	return b
}

func appendLen(b []byte, n int) []byte { return binary.LittleEndian.AppendUint32(b, uint32(n)) }

func appendInt(b []byte, v int32) []byte { return binary.LittleEndian.AppendUint32(b, uint32(v)) }

func appendFloat(b []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendList[T flat](b []byte, v []T) []byte {
	return append(appendLen(b, len(v)), memory(v)...)
}
