// Package engine owns the life of a request: admission, the step loop (the only goroutine that
// calls the scheduler), incremental detokenisation, stop strings, and delivery to streams.
package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Request is a prompt and what is to follow it: one output, or several. Several prompts are several
// Requests, which are submitted together. The outputs of one prompt share its blocks through the
// prefix cache.
type Request struct {
	// Request is what the scheduler must know. Prompt ids are within the vocabulary; of
	// Params.MaxTokens is cut what exceeds the room that the prompt leaves. Key and Index are not
	// the caller's to set.
	schedule.Request
	// Stop are strings that end the output.
	Stop []string
	// IncludeStop keeps the stop string in the text.
	IncludeStop bool
	// KeepSpecial leaves special tokens in the text (skip_special_tokens=false).
	KeepSpecial bool
	// Seeds are those of several outputs; nil is one output, with the seed of Params.
	Seeds []uint64
	// Ticket is where the keys and values of the prompt's beginning are, nil for nowhere.
	Ticket *kvtransfer.Ticket
	// Raw gives token ids only, no text (no tokenizer, or detokenize=false).
	Raw bool
	// FinalOnly gives all that becomes known of the request in one Delta, its last: a reader that
	// waits for the whole is not woken for each token.
	FinalOnly bool
	// Interval is how many tokens a Delta has at least, but for the first and the last one; 0 is 1.
	Interval int
}

// NewRequest returns a request to go on after a prompt.
func NewRequest(prompt []int32, p sample.Params) *Request {
	return &Request{Request: schedule.Request{Prompt: prompt, Params: p}}
}

// Outputs is how many outputs the request has.
func (r *Request) Outputs() int { return max(1, len(r.Seeds)) }

// Output is the request of its i-th output alone.
func (r *Request) Output(i int) Request {
	one := *r
	if r.Seeds != nil {
		one.Params.Seed, one.Seeds = r.Seeds[i], nil
	}
	return one
}

// Outputs is how many outputs requests have together.
func Outputs(list []*Request) (n int) {
	for _, r := range list {
		n += r.Outputs()
	}
	return n
}

// OneToken returns the least request there is, of a model that pools or one that generates: whether
// it succeeds says whether any would.
func OneToken(p *open.Pooling) *Request {
	if p != nil {
		return NewPoolingRequest([]int32{0}, p.Type)
	}
	return NewRequest([]int32{0}, sample.Params{TopP: 1, RepetitionPenalty: 1, MaxTokens: 1,
		EOS:      -1,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs})
}

// Delta is what became known of a request since the last one. Several steps may be merged into one
// when the reader is slower than the engine.
type Delta struct {
	// Choice is the number of the output: those of the first request that Submit was given come
	// first.
	Choice int
	// Text is certain text: whole characters, and never a beginning of a stop string.
	Text []byte
	// Tokens are the sampled ids, Logprobs (parallel, when asked for) how they were chosen.
	Tokens   []int32
	Logprobs []step.Logprobs
	// TextOffsets, parallel to Tokens, is the length in bytes of the output text known before each
	// token.
	TextOffsets []int
	// RuneOffsets, parallel to Tokens, is the same length in characters.
	RuneOffsets []int
	// TextEnds, parallel to Tokens, is how much of Text there was with each token.
	TextEnds []int
	// Pooled is what a request that pools asked for; its token means nothing.
	Pooled []float32
	// PromptLogprobs (when asked for) comes with the first delta: one entry per prompt token, the
	// first entry empty because nothing precedes it.
	PromptLogprobs []step.Logprobs
	// Finish is Unfinished until the last delta.
	Finish sample.Finish
	// StopString or StopToken is what ended the output when it was a stop string or one of
	// StopTokens; "" and -1 otherwise.
	StopString string
	StopToken  int32
	// Ticket, in the last delta, is for who is to go on from the keys and values of the prompt; nil
	// unless the request asks for it (HandOver), and when there are none to go on from.
	Ticket *kvtransfer.Ticket
	// PromptTokens and CachedTokens count the prompt; OutputTokens is the output so far.
	PromptTokens, CachedTokens, OutputTokens int
	// Times, in the last delta, are how long the request took.
	Times Times
}

// Times are how long the parts of a request took that has an output.
type Times struct {
	// Queue is from its arrival until a plan had it, Prefill from there to its first token, Decode
	// from there to its last.
	Queue, Prefill, Decode time.Duration
}

// Empty says that the delta shows nothing: part of the prompt has been processed.
func (d *Delta) Empty() bool {
	return len(d.Text) == 0 && len(d.Tokens) == 0 && d.Finish == sample.Unfinished
}

// Errors a caller acts on.
var (
	// ErrOverloaded means the waiting queue is full: try again later.
	ErrOverloaded = errors.New("engine is overloaded: too many waiting requests")
	// ErrStopped means the engine is shutting down.
	ErrStopped = groups.ErrStopped
	// ErrFailed means the engine died; errors wrapping it name the cause.
	ErrFailed = errors.New("engine failed")
	// ErrRecovering means that requests are held until a new group of ranks has taken the place of
	// one that failed: errors wrapping it, which only Healthy returns, name the cause.
	ErrRecovering = errors.New("engine is recovering")
	// ErrStalled means that a rank has not moved for a while although it has work; errors wrapping
	// it, which only Healthy returns, name the rank.
	ErrStalled = errors.New("engine is stalled")
	// ErrPaused means that requests wait until generation is resumed; only Healthy returns it.
	ErrPaused = errors.New("generation is paused")
	// ErrUnsound means that the model's logits for the request are not numbers.
	ErrUnsound = errors.New("the model computed NaN or infinity for this request")
	// ErrStuck means that the constraint of a request leaves it no token to go on with.
	ErrStuck = errors.New("the constraint on the output leaves no token to choose")
	// ErrSpent means that the constraint of a request takes more work or memory to enforce than an
	// answer may.
	ErrSpent = errors.New(spent())
	// ErrReplaced means that a part of an answer was known when other weights were adopted: the
	// rest would be another model's.
	ErrReplaced = errors.New("the model's files were replaced while the request was answered, " +
		"and others answer from now on (--on-model-change adopt): ask again")
	// ErrCondemned means that ranks fail whenever they compute the request; errors wrapping it name
	// the cause.
	ErrCondemned = errors.New("the workers failed whenever they computed this request")
)

// spent is the text of ErrSpent, with what an answer may take.
func spent() string {
	l := constrain.Defaults()
	return fmt.Sprintf("to enforce the constraint on the output takes more than %d operations or "+
		"%d places in its rules for one token, %d operations in all, or %d MiB, as where it can "+
		"be read in very many ways: fewer or simpler alternatives take less", l.Steps, l.Items,
		l.Answer, l.Bytes>>20)
}

// NewPoolingRequest returns a request for what of a prompt is pooled; a token of
// step.PoolLogits is one of tokens.
func NewPoolingRequest(prompt []int32, p step.Pooling, tokens ...int32) *Request {
	r := NewRequest(prompt, sample.Params{TopP: 1, RepetitionPenalty: 1, MaxTokens: 1, EOS: -1,
		Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs, AllowedTokens: tokens})
	r.Pooling, r.Raw = p, true
	return r
}
