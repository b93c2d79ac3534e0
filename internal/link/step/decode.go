package step

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// DecodePlan overwrites p with the plan that is encoded in b, all of b. It copies everything out of
// b and reuses the memory of p's slices, so decoding plan after plan into one Plan settles to no
// allocation. It makes room for no more than a small multiple of len(b). After an error the
// contents of p are unspecified.
func DecodePlan(b []byte, p *Plan) error {
	r := reader{b: b}
	r.header(kindPlan)
	p.ID = r.uint64("ID")
	p.Free = list(&r, "Free", p.Free)
	p.New = records(&r, "New", p.New, minNewRequest)
	for i := range p.New {
		r.newRequest(&p.New[i])
	}
	rows, blocks, drafts := r.rows(p.Rows)
	p.Rows = rows
	p.Blocks = list(&r, "Blocks", p.Blocks)
	p.Drafts = list(&r, "Drafts", p.Drafts)
	p.Guess = list(&r, "Guess", p.Guess)
	p.Restore = list(&r, "Restore", p.Restore)
	p.Save = list(&r, "Save", p.Save)
	if err := r.end(); err != nil {
		return fmt.Errorf("step: plan: %w", err)
	}
	if blocks != uint64(len(p.Blocks)) {
		return fmt.Errorf("step: plan %d: %d new blocks announced, %d listed", p.ID, blocks,
			len(p.Blocks))
	}
	if drafts != uint64(len(p.Drafts)) {
		return fmt.Errorf("step: plan %d: %d drafts announced, %d listed", p.ID, drafts,
			len(p.Drafts))
	}
	if err := p.consistent(); err != nil {
		return fmt.Errorf("step: plan %d: %w", p.ID, err)
	}
	return nil
}

// consistent checks what a receiver would otherwise trip over.
func (p *Plan) consistent() error {
	for i := range p.New {
		if q := &p.New[i]; uint64(q.PromptLen) > uint64(len(q.Tokens)) {
			return fmt.Errorf("slot %d: prompt of %d tokens, %d listed", q.Slot, q.PromptLen,
				len(q.Tokens))
		}
	}
	return nil
}

// DecodeResult overwrites r with the result that is encoded in b, on the same terms as DecodePlan.
func DecodeResult(b []byte, res *Result) error {
	r := reader{b: b}
	r.header(kindResult)
	res.Plan = r.uint64("Plan")
	res.Slot = list(&r, "Slot", res.Slot)
	res.Token = list(&r, "Token", res.Token)
	if len(res.Token) != len(res.Slot) {
		res.End = list(&r, "End", res.End)
	} else {
		res.End = oneEach(res.End, len(res.Slot))
	}
	res.Logprobs = r.logprobs("Logprobs", res.Logprobs)
	res.PromptLogprobs = records(&r, "PromptLogprobs", res.PromptLogprobs, minPromptLogprobs)
	for i := range res.PromptLogprobs {
		p := &res.PromptLogprobs[i]
		p.Slot = r.uint32("PromptLogprobs.Slot")
		p.Start = r.uint32("PromptLogprobs.Start")
		p.Entries = r.logprobs("PromptLogprobs.Entries", p.Entries)
	}
	res.Pooled = records(&r, "Pooled", res.Pooled, minPooled)
	for i := range res.Pooled {
		res.Pooled[i].Slot = r.uint32("Pooled.Slot")
		res.Pooled[i].Vector = list(&r, "Pooled.Vector", res.Pooled[i].Vector)
	}
	res.Forced = r.drafts("Forced", res.Forced)
	res.Guessed = r.drafts("Guessed", res.Guessed)
	if err := r.end(); err != nil {
		return fmt.Errorf("step: result: %w", err)
	}
	if len(res.Token) == len(res.Slot) {
		return nil
	}
	if err := res.consistent(); err != nil {
		return fmt.Errorf("step: result of plan %d: %w", res.Plan, err)
	}
	return nil
}

// oneEach are the ends of n runs of one token each, in dst's memory.
func oneEach(dst []uint32, n int) []uint32 {
	if cap(dst) < n {
		dst = make([]uint32, n)
	}
	dst = dst[:n]
	for i := range dst {
		dst[i] = uint32(i + 1)
	}
	return dst
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
func ResultPlan(b []byte) (uint64, error) {
	r := reader{b: b}
	r.header(kindResult)
	plan := r.uint64("Plan")
	if r.err != nil {
		return 0, fmt.Errorf("step: result: %w", r.err)
	}
	return plan, nil
}

// reader takes fields off the front of b. After the first error b is empty, every further field is
// zero, and the error stays.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

func (r *reader) header(kind byte) {
	if len(r.b) < 2 {
		r.fail("%d bytes are too few", len(r.b))
		return
	}
	if r.b[0] != Version {
		r.fail("version %d, this binary reads version %d", r.b[0], Version)
		return
	}
	if r.b[1] != kind {
		r.fail("record of kind %q, want %q", r.b[1], kind)
		return
	}
	r.b = r.b[2:]
}

// end returns the first error; bytes that are left are one.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes after the end", len(r.b))
	}
	return r.err
}

func (r *reader) uint32(field string) uint32 {
	if len(r.b) < 4 {
		r.fail("%s: %d bytes left, 4 needed", field, len(r.b))
		return 0
	}
	v := binary.LittleEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) uint64(field string) uint64 {
	if len(r.b) < 8 {
		r.fail("%s: %d bytes left, 8 needed", field, len(r.b))
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) int32(field string) int32 { return int32(r.uint32(field)) }

func (r *reader) float32(field string) float32 { return math.Float32frombits(r.uint32(field)) }

func (r *reader) bool(field string) bool {
	v := r.byte(field)
	if v > 1 {
		r.fail("%s: %d is no boolean", field, v)
	}
	return v == 1
}

func (r *reader) byte(field string) byte {
	if len(r.b) < 1 {
		r.fail("%s: no bytes left", field)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// text reads a string; one that is equal to was stays where that is.
func (r *reader) text(field, was string) string {
	n := r.length(field, 1)
	b := r.b[:n]
	r.b = r.b[n:]
	if string(b) == was {
		return was
	}
	return string(b)
}

// length reads the length of a list whose elements take at least size bytes each.
func (r *reader) length(field string, size int) int {
	n := uint64(r.uint32(field))
	if n*uint64(size) > uint64(len(r.b)) {
		r.fail("%s: %d elements need %d bytes, %d left", field, n, n*uint64(size), len(r.b))
		return 0
	}
	return int(n)
}

// list reads a list of flat elements into dst's memory.
func list[T flat](r *reader, field string, dst []T) []T {
	return elements(r, r.length(field, int(unsafe.Sizeof(*new(T)))), dst)
}

// elements reads n flat elements, which are there.
func elements[T flat](r *reader, n int, dst []T) []T {
	if cap(dst) < n {
		dst = make([]T, n)
	}
	dst = dst[:n]
	r.b = r.b[copy(memory(dst), r.b):]
	return dst
}

// records makes room for a list of composite elements. It keeps the elements of dst, whose slices
// will be reused.
func records[T any](r *reader, field string, dst []T, size int) []T {
	n := r.length(field, size)
	if cap(dst) < n {
		more := make([]T, n)
		copy(more, dst[:cap(dst)])
		return more
	}
	return dst[:n]
}

// rows reads Plan.Rows, and how many blocks and drafts they announce. A row whose last word is not
// one that the encoder writes is refused: it is not used as a Row.
func (r *reader) rows(dst []Row) (rows []Row, blocks, drafts uint64) {
	rows = elements(r, r.length("Rows", rowSize), dst)
	words := rowWords(rows)
	var any, pairs uint32
	for i := range words {
		last := words[i][len(words[i])-1]
		blocks += uint64(last & blocksMask)
		any |= last
		pairs |= last & (last >> 1)
	}
	// Of the two bits of Source one at the most is set: FromPlan or FromSampler.
	if any&^rowsLastWord != 0 || pairs&(1<<sourceShift) != 0 {
		r.fail("Rows: the source or the flag of a row is none")
		return rows[:0], 0, 0
	}
	for i := range rows {
		drafts += uint64(rows[i].Drafts())
	}
	return rows, blocks, drafts
}

func (r *reader) newRequest(q *NewRequest) {
	q.Slot = r.uint32("New.Slot")
	q.PromptLen = r.uint32("New.PromptLen")
	q.Tokens = list(r, "New.Tokens", q.Tokens)
	q.Blocks = list(r, "New.Blocks", q.Blocks)
	r.params(&q.Params)
	r.constraint(&q.Constraint)
	pooling := r.byte("New.Pooling")
	if pooling >= byte(poolings) {
		r.fail("New.Pooling: kind %d is none", pooling)
	}
	q.Pooling = Pooling(pooling)
	q.Second = r.uint32("New.Second")
	q.Adapter = r.uint32("New.Adapter")
}

func (r *reader) constraint(c *constrain.Spec) {
	kind := r.byte("New.Constraint")
	if kind >= constrain.Kinds {
		r.fail("New.Constraint: kind %d is none", kind)
	}
	c.Kind = constrain.Kind(kind)
	c.Text = r.text("New.Constraint", c.Text)
	c.Compact = r.bool("New.Constraint")
	c.Closed = r.bool("New.Constraint")
	c.AnyOrder = r.bool("New.Constraint")
}

func (r *reader) params(p *sample.Params) {
	p.Temperature = r.float32("Params.Temperature")
	p.TopP = r.float32("Params.TopP")
	p.TopK = r.int32("Params.TopK")
	p.MinP = r.float32("Params.MinP")
	p.RepetitionPenalty = r.float32("Params.RepetitionPenalty")
	p.PresencePenalty = r.float32("Params.PresencePenalty")
	p.FrequencyPenalty = r.float32("Params.FrequencyPenalty")
	p.Seed = r.uint64("Params.Seed")
	p.Logprobs = r.int32("Params.Logprobs")
	p.LogprobTokens = list(r, "Params.LogprobTokens", p.LogprobTokens)
	p.PromptLogprobs = r.int32("Params.PromptLogprobs")
	p.Processed = r.bool("Params.Processed")
	p.AsLogits = r.bool("Params.AsLogits")
	p.MaxTokens = r.int32("Params.MaxTokens")
	p.MinTokens = r.int32("Params.MinTokens")
	p.EOS = r.int32("Params.EOS")
	p.IgnoreEOS = r.bool("Params.IgnoreEOS")
	p.StopTokens = list(r, "Params.StopTokens", p.StopTokens)
	p.Withheld = list(r, "Params.Withheld", p.Withheld)
	p.LogitBias = list(r, "Params.LogitBias", p.LogitBias)
	p.AllowedTokens = list(r, "Params.AllowedTokens", p.AllowedTokens)
	p.BadWords = records(r, "Params.BadWords", p.BadWords, minList)
	for i := range p.BadWords {
		p.BadWords[i] = list(r, "Params.BadWords", p.BadWords[i])
	}
	p.ThinkingBudget = r.int32("Params.ThinkingBudget")
	p.ThinkingStart = list(r, "Params.ThinkingStart", p.ThinkingStart)
	p.ThinkingEnd = list(r, "Params.ThinkingEnd", p.ThinkingEnd)
}

func (r *reader) drafts(field string, dst []Drafts) []Drafts {
	dst = records(r, field, dst, minDrafts)
	for i := range dst {
		dst[i].Slot = r.uint32(field)
		dst[i].Tokens = list(r, field, dst[i].Tokens)
	}
	return dst
}

func (r *reader) logprobs(field string, dst []Logprobs) []Logprobs {
	dst = records(r, field, dst, minLogprobs)
	for i := range dst {
		l := &dst[i]
		l.Slot = r.uint32(field)
		l.Sampled.Token = r.int32(field)
		l.Sampled.Rank = r.int32(field)
		l.Sampled.Logprob = r.float32(field)
		l.Top = list(r, field, l.Top)
	}
	return dst
}
