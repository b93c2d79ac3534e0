package step

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// The encoding: a version byte, a kind byte, then the fields in the order in which a coder comes by
// them, little-endian, without padding. A list is its length as uint32, then its elements. There is
// one encoding of every record: a decoder accepts nothing that the encoder would not write.
const (
	// Version is the first byte of every record. It changes with the layout; driver and workers are
	// the same binary, so no decoder reads an older one.
	Version = 12

	kindPlan   = 'P'
	kindResult = 'R'
)

// Encoded sizes of records when their lists are empty. A decoder uses them to refuse a length that
// the remaining bytes cannot hold before it makes room for it.
var (
	minNewRequest     = emptySize((*coder).newRequest)
	minLogprobs       = emptySize((*coder).logprobs)
	minPromptLogprobs = emptySize((*coder).promptLogprobs)
	minPooled         = emptySize((*coder).pooled)
	minDrafts         = emptySize((*coder).drafts)
)

const minList = 4

func emptySize[T any](code func(*coder, *T)) int {
	var c coder
	code(&c, new(T))
	return len(c.b)
}

// The last word of a Row: Blocks, Source from bit 16 on, and Sample in bit 24.
const (
	rowSize      = 5 * 4
	blocksMask   = 1<<16 - 1
	sourceShift  = 16
	rowsLastWord = blocksMask | 3<<sourceShift | 1<<24
)

type bias = sample.Bias

// AppendPlan appends the encoding of p to b. Row.Blocks adds up to the length of Plan.Blocks,
// Row.Drafts to that of Plan.Drafts, and every Row.Source is one of the sources above; DecodePlan
// refuses anything else.
func AppendPlan(b []byte, p *Plan) []byte {
	c := coder{b: append(b, Version, kindPlan)}
	c.plan(p)
	return c.b
}

// DecodePlan overwrites p with the plan that is encoded in b, all of b. It copies everything out of
// b and reuses the memory of p's slices, so decoding plan after plan into one Plan settles to no
// allocation. It makes room for no more than a small multiple of len(b). After an error the
// contents of p are unspecified.
func DecodePlan(b []byte, p *Plan) error {
	c := reader(b, kindPlan)
	c.plan(p)
	if err := c.end(); err != nil {
		return fmt.Errorf("step: plan: %w", err)
	}
	if err := p.consistent(); err != nil {
		return fmt.Errorf("step: plan %d: %w", p.ID, err)
	}
	return nil
}

// consistent checks what a receiver would otherwise trip over.
func (p *Plan) consistent() error {
	// A row whose last word is not one that the encoder writes is not used as a Row.
	rows, words := p.Rows, rowWords(p.Rows)
	var any, pairs uint32
	var blocks, drafts uint64
	for i := range rows {
		last := words[i][len(words[i])-1]
		any |= last
		pairs |= last & (last >> 1)
		blocks += uint64(last & blocksMask)
		drafts += uint64(rows[i].Drafts())
	}
	// Of the two bits of Source one at the most is set: FromPlan or FromSampler.
	if any&^rowsLastWord != 0 || pairs&(1<<sourceShift) != 0 {
		return errors.New("the source or the flag of a row is none")
	}
	if blocks != uint64(len(p.Blocks)) {
		return fmt.Errorf("%d new blocks announced, %d listed", blocks, len(p.Blocks))
	}
	if drafts != uint64(len(p.Drafts)) {
		return fmt.Errorf("%d drafts announced, %d listed", drafts, len(p.Drafts))
	}
	for i := range p.New {
		if q := &p.New[i]; uint64(q.PromptLen) > uint64(len(q.Tokens)) {
			return fmt.Errorf("slot %d: prompt of %d tokens, %d listed", q.Slot, q.PromptLen,
				len(q.Tokens))
		}
	}
	return nil
}

// AppendResult appends the encoding of r to b. Slot and End are equally long, and End divides Token
// into runs; DecodeResult refuses anything else.
func AppendResult(b []byte, r *Result) []byte {
	c := coder{b: append(b, Version, kindResult)}
	c.result(r)
	return c.b
}

// DecodeResult overwrites r with the result that is encoded in b, on the same terms as DecodePlan.
func DecodeResult(b []byte, r *Result) error {
	c := reader(b, kindResult)
	c.result(r)
	if err := c.end(); err != nil {
		return fmt.Errorf("step: result: %w", err)
	}
	if len(r.Token) == len(r.Slot) {
		r.End = slices.Grow(r.End[:0], len(r.Slot))[:len(r.Slot)]
		for i := range r.End {
			r.End[i] = uint32(i + 1)
		}
		return nil
	}
	if err := r.consistent(); err != nil {
		return fmt.Errorf("step: result of plan %d: %w", r.Plan, err)
	}
	return nil
}

// consistent checks that Run answers for every slot.
func (r *Result) consistent() error {
	if len(r.Slot) != len(r.End) {
		return fmt.Errorf("%d slots with %d runs", len(r.Slot), len(r.End))
	}
	end := uint32(0)
	for i, e := range r.End {
		if e <= end {
			return fmt.Errorf("the tokens of slot %d end at %d, those before at %d",
				r.Slot[i], e, end)
		}
		end = e
	}
	if int64(end) != int64(len(r.Token)) {
		return fmt.Errorf("runs of %d tokens, %d listed", end, len(r.Token))
	}
	return nil
}

// ResultPlan returns Result.Plan of an encoded result, without a look at the rest.
func ResultPlan(b []byte) (plan uint64, err error) {
	c := reader(b, kindResult)
	fixed(&c, "Plan", &plan)
	if c.err != nil {
		return 0, fmt.Errorf("step: result: %w", c.err)
	}
	return plan, nil
}

// coder comes by all fields of a record in their order, and appends each to b, or, if it reads,
// takes it off the front of b. After the first error b is empty, further lists are, and the error
// stays.
type coder struct {
	b     []byte
	reads bool
	err   error
}

func (c *coder) plan(p *Plan) {
	fixed(c, "ID", &p.ID)
	list(c, "Free", &p.Free)
	for i := range records(c, "New", &p.New, minNewRequest) {
		c.newRequest(&p.New[i])
	}
	list(c, "Rows", &p.Rows)
	list(c, "Blocks", &p.Blocks)
	list(c, "Drafts", &p.Drafts)
	list(c, "Guess", &p.Guess)
	list(c, "Restore", &p.Restore)
	list(c, "Save", &p.Save)
}

func (c *coder) newRequest(q *NewRequest) {
	fixed(c, "New.Slot", &q.Slot)
	fixed(c, "New.PromptLen", &q.PromptLen)
	list(c, "New.Tokens", &q.Tokens)
	list(c, "New.Blocks", &q.Blocks)
	c.params(&q.Params)
	octet(c, "New.Constraint", &q.Constraint.Kind, constrain.Kinds, noKind)
	c.text("New.Constraint", &q.Constraint.Text)
	c.bool("New.Constraint", &q.Constraint.Compact)
	c.bool("New.Constraint", &q.Constraint.Closed)
	c.bool("New.Constraint", &q.Constraint.AnyOrder)
	octet(c, "New.Pooling", &q.Pooling, poolings, noKind)
	fixed(c, "New.Second", &q.Second)
	fixed(c, "New.Adapter", &q.Adapter)
}

func (c *coder) params(p *sample.Params) {
	fixed(c, "Params.Temperature", &p.Temperature)
	fixed(c, "Params.TopP", &p.TopP)
	fixed(c, "Params.TopK", &p.TopK)
	fixed(c, "Params.MinP", &p.MinP)
	fixed(c, "Params.RepetitionPenalty", &p.RepetitionPenalty)
	fixed(c, "Params.PresencePenalty", &p.PresencePenalty)
	fixed(c, "Params.FrequencyPenalty", &p.FrequencyPenalty)
	fixed(c, "Params.Seed", &p.Seed)
	fixed(c, "Params.Logprobs", &p.Logprobs)
	list(c, "Params.LogprobTokens", &p.LogprobTokens)
	fixed(c, "Params.PromptLogprobs", &p.PromptLogprobs)
	c.bool("Params.Processed", &p.Processed)
	c.bool("Params.AsLogits", &p.AsLogits)
	fixed(c, "Params.MaxTokens", &p.MaxTokens)
	fixed(c, "Params.MinTokens", &p.MinTokens)
	fixed(c, "Params.EOS", &p.EOS)
	c.bool("Params.IgnoreEOS", &p.IgnoreEOS)
	list(c, "Params.StopTokens", &p.StopTokens)
	list(c, "Params.Withheld", &p.Withheld)
	list(c, "Params.LogitBias", &p.LogitBias)
	list(c, "Params.AllowedTokens", &p.AllowedTokens)
	for i := range records(c, "Params.BadWords", &p.BadWords, minList) {
		list(c, "Params.BadWords", &p.BadWords[i])
	}
	fixed(c, "Params.ThinkingBudget", &p.ThinkingBudget)
	list(c, "Params.ThinkingStart", &p.ThinkingStart)
	list(c, "Params.ThinkingEnd", &p.ThinkingEnd)
}

// result comes by End only when there are more tokens than slots: else every run is one token.
func (c *coder) result(r *Result) {
	fixed(c, "Plan", &r.Plan)
	list(c, "Slot", &r.Slot)
	list(c, "Token", &r.Token)
	if len(r.Token) != len(r.Slot) {
		list(c, "End", &r.End)
	}
	for i := range records(c, "Logprobs", &r.Logprobs, minLogprobs) {
		c.logprobs(&r.Logprobs[i])
	}
	for i := range records(c, "PromptLogprobs", &r.PromptLogprobs, minPromptLogprobs) {
		c.promptLogprobs(&r.PromptLogprobs[i])
	}
	for i := range records(c, "Pooled", &r.Pooled, minPooled) {
		c.pooled(&r.Pooled[i])
	}
	for i := range records(c, "Forced", &r.Forced, minDrafts) {
		c.drafts(&r.Forced[i])
	}
	for i := range records(c, "Guessed", &r.Guessed, minDrafts) {
		c.drafts(&r.Guessed[i])
	}
}

func (c *coder) logprobs(l *Logprobs) {
	fixed(c, "Logprobs.Slot", &l.Slot)
	fixed(c, "Logprobs.Sampled", &l.Sampled)
	list(c, "Logprobs.Top", &l.Top)
}

func (c *coder) promptLogprobs(p *PromptLogprobs) {
	fixed(c, "PromptLogprobs.Slot", &p.Slot)
	fixed(c, "PromptLogprobs.Start", &p.Start)
	for i := range records(c, "PromptLogprobs.Entries", &p.Entries, minLogprobs) {
		c.logprobs(&p.Entries[i])
	}
}

func (c *coder) pooled(p *Pooled) {
	fixed(c, "Pooled.Slot", &p.Slot)
	list(c, "Pooled.Vector", &p.Vector)
}

func (c *coder) drafts(d *Drafts) {
	fixed(c, "Drafts.Slot", &d.Slot)
	list(c, "Drafts.Tokens", &d.Tokens)
}

// reader takes a record of a kind off b.
func reader(b []byte, kind byte) coder {
	c := coder{reads: true}
	switch {
	case len(b) < 2:
		c.fail("%d bytes are too few", len(b))
	case b[0] != Version:
		c.fail("version %d, this binary reads version %d", b[0], Version)
	case b[1] != kind:
		c.fail("record of kind %q, want %q", b[1], kind)
	default:
		c.b = b[2:]
	}
	return c
}

func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
	c.b = nil
}

// end returns the first error; bytes that are left are one.
func (c *coder) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail("%d bytes after the end", len(c.b))
	}
	return c.err
}

// fixed comes by a field of a fixed size.
func fixed[T flat](c *coder, field string, v *T) {
	m := memory(unsafe.Slice(v, 1))
	if !c.reads {
		c.b = append(c.b, m...)
	} else if len(c.b) < len(m) {
		c.fail("%s: %d bytes left, %d needed", field, len(c.b), len(m))
	} else {
		c.b = c.b[copy(m, c.b):]
	}
}

func (c *coder) bool(field string, v *bool) {
	b := uint8(0)
	if *v {
		b = 1
	}
	octet(c, field, &b, 2, "%s: %d is no boolean")
	if c.reads {
		*v = b == 1
	}
}

const noKind = "%s: kind %d is none"

// octet comes by a byte below a limit.
func octet[T ~uint8](c *coder, field string, v *T, limit T, refusal string) {
	fixed(c, field, v)
	if c.reads && *v >= limit {
		c.fail(refusal, field, *v)
	}
}

// text comes by a string; one that is read and equal to the one that was there is that.
func (c *coder) text(field string, v *string) {
	n := c.length(field, len(*v), 1)
	if !c.reads {
		c.b = append(c.b, *v...)
		return
	}
	if b := c.b[:n]; string(b) != *v {
		*v = string(b)
	}
	c.b = c.b[n:]
}

// length comes by the length of a list, which has n elements now, each of at least size bytes.
func (c *coder) length(field string, n, size int) int {
	v := uint32(n)
	fixed(c, field, &v)
	if need := uint64(v) * uint64(size); c.reads && need > uint64(len(c.b)) {
		c.fail("%s: %d elements need %d bytes, %d left", field, v, need, len(c.b))
		return 0
	}
	return int(v)
}

// list comes by a list of flat elements, which are read into the memory that is there.
func list[T flat](c *coder, field string, v *[]T) {
	n := c.length(field, len(*v), int(unsafe.Sizeof(*new(T))))
	if !c.reads {
		c.b = append(c.b, memory(*v)...)
		return
	}
	*v = slices.Grow((*v)[:0], n)[:n]
	c.b = c.b[copy(memory(*v), c.b):]
}

// records comes by the length of a list of composite elements, and returns the list, with room for
// them. It keeps the elements that are there, whose slices are reused.
func records[T any](c *coder, field string, v *[]T, size int) []T {
	n := c.length(field, len(*v), size)
	if c.reads {
		*v = slices.Grow((*v)[:0], n)[:n]
	}
	return *v
}
