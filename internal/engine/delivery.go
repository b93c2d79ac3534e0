package engine

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// batch is what the step loop hands to delivery at a time: what a step brought, or requests that
// end without one. Nothing in it is the memory of a step.Result, which the next plan overwrites.
type batch struct {
	outputs []schedule.Output
	// tokens holds those of outputs.
	tokens []int32
	// made is when the plan was, applied when its result was.
	made, applied time.Time

	// series are the metrics of each place.
	series []*metrics.Engine
	// ended are requests that end in the way of how, with err unless that is nil. drained says that
	// the end of the engine cuts them off.
	ended   []*request
	how     sample.Finish
	err     error
	drained bool
}

// batches is how many the step loop may be ahead of delivery.
const batches = 4

// delivery turns tokens into text and gives them to the streams. It is a goroutine of its own, so
// that the next plan waits neither for text nor for readers to be woken.
type delivery struct {
	// batches carries what became known to delivery, used carries the batches back.
	batches, used chan *batch
	events        status.Listener
	// series are the metrics of each place, as the loop has them.
	series []*metrics.Engine
	// abort tells the loop that a stop string has ended a request.
	abort func(key uint64)
	// cut is told how many requests the end of the engine cut off.
	cut func(n int)
}

func newDelivery(e *Engine) *delivery {
	d := &delivery{batches: make(chan *batch, batches), used: make(chan *batch, batches),
		events: e.events,
		abort:  func(key uint64) { e.post(aborted{key}) },
		cut: func(n int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.cut += n
		}}
	for range batches {
		d.used <- new(batch)
	}
	return d
}

// empty returns a batch to fill. It waits while delivery is as far behind as it may be; delivery
// waits for nothing but batches.
func (d *delivery) empty() *batch {
	b := <-d.used
	clear(b.outputs)
	clear(b.ended)
	*b = batch{outputs: b.outputs[:0], tokens: b.tokens[:0], ended: b.ended[:0],
		series: d.series}
	return b
}

// copyOut copies what outputs of a batch refer to out of the result they came with.
func (b *batch) copyOut() {
	for i := range b.outputs {
		o := &b.outputs[i]
		from := len(b.tokens)
		b.tokens = append(b.tokens, o.Tokens...)
		// Where append takes new memory the old one stays with the outputs before.
		o.Tokens = b.tokens[from:]
		o.Pooled = slices.Clone(o.Pooled)
		if o.Logprobs != nil {
			o.Logprobs = cloneLogprobs(o.Logprobs)
		}
		if p := o.PromptLogprobs; p != nil {
			o.PromptLogprobs = &step.PromptLogprobs{Slot: p.Slot, Start: p.Start,
				Entries: cloneLogprobs(p.Entries)}
		}
	}
}

func cloneLogprobs(list []step.Logprobs) []step.Logprobs {
	list = slices.Clone(list)
	for i := range list {
		list[i].Top = slices.Clone(list[i].Top)
	}
	return list
}

// run delivers batches in their order until the loop ends. A stop string that it finds is an abort
// to the loop, which may have planned further tokens by then: they are dropped here.
func (d *delivery) run() {
	for b := range d.batches {
		for i := range b.outputs {
			d.deliver(&b.outputs[i], b)
		}
		d.deliverEnds(b)
		d.used <- b
	}
}

// deliverEnds tells the readers of requests that end without a last token.
func (d *delivery) deliverEnds(b *batch) {
	cut := 0
	for _, q := range b.ended {
		if q.over {
			continue
		}
		cut++
		d.finish(q, b.series[q.Place()], b.how)
		if b.err != nil {
			q.stream.fail(q.choice, b.err)
			continue
		}
		q.stream.publish(q.choice, func(d *Delta) { d.Finish = b.how })
	}
	if b.drained {
		d.cut(cut)
	}
}

// deliver hands one request's news to its stream.
func (d *delivery) deliver(o *schedule.Output, b *batch) {
	q := o.Owner.(*request)
	if q.over {
		return
	}
	if q.scheduled.IsZero() {
		q.scheduled = b.made
	}
	if len(o.Tokens) == 0 {
		q.deliverPrompt(o)
	}
	q.observeGuess(o)
	for i := range o.Tokens {
		if d.deliverToken(q, o, i, b); q.over {
			return // a stop string ended it
		}
	}
	if o.Finish == sample.FinishError {
		d.finish(q, b.series[o.Place], o.Finish)
		why := ErrUnsound
		switch o.Fault {
		case sample.Stuck:
			why = ErrStuck
		case sample.Spent:
			why = ErrSpent
		}
		q.stream.fail(q.choice,
			fmt.Errorf("%w: after %d tokens of output", why, q.outputs))
	}
}

// deliverToken hands over the i-th token of a run. What ends the request is the last of them, or a
// stop string.
func (d *delivery) deliverToken(q *request, o *schedule.Output, i int, b *batch) {
	q.outputs++
	finish := sample.Unfinished
	if i == len(o.Tokens)-1 && o.Finish != sample.FinishError {
		finish = o.Finish
	}
	offset, runes := q.text, q.runes
	text, stop := q.advance(o.Tokens[i], finish)
	if stop != "" && o.Finish == sample.Unfinished {
		d.abort(q.Key)
	}
	if stop != "" {
		finish = sample.FinishStop
	}
	if i == 0 {
		observeRun(b.series[o.Place], q, b.applied)
	}
	if finish != sample.Unfinished {
		d.finish(q, b.series[o.Place], finish)
	}
	q.stream.publish(q.choice, func(d *Delta) {
		if d.Tokens == nil {
			q.reserve(d)
		}
		d.Text = append(d.Text, text...)
		d.Tokens = append(d.Tokens, o.Tokens[i])
		d.Pooled = append(d.Pooled, o.Pooled...)
		d.TextOffsets, d.RuneOffsets = append(d.TextOffsets, offset), append(d.RuneOffsets, runes)
		d.TextEnds = append(d.TextEnds, len(d.Text))
		if o.Logprobs != nil {
			d.Logprobs = append(d.Logprobs, o.Logprobs[i])
		}
		if i == 0 {
			q.addPromptLogprobs(d, o)
		}
		d.Finish, d.StopString = finish, stop
		if finish != sample.Unfinished {
			d.Ticket, d.Times = q.published, q.times()
		}
		if finish != sample.Unfinished && stop == "" {
			d.StopToken = o.StopToken
		}
		d.PromptTokens, d.CachedTokens, d.OutputTokens = len(q.Prompt), o.Cached, q.outputs
	})
}

// reserve makes room for what a slow reader has merged into one delta, so that steady decoding does
// not allocate: for 128 tokens, and as much more as comes.
func (q *request) reserve(d *Delta) {
	n := min(128, int(q.Params.MaxTokens))
	d.Tokens, d.TextOffsets = make([]int32, 0, n), make([]int, 0, n)
	d.RuneOffsets, d.TextEnds = make([]int, 0, n), make([]int, 0, n)
	if q.decoder != nil {
		d.Text = make([]byte, 0, 4*n)
	}
}

// deliverPrompt hands over log-probabilities of a prompt that is not complete yet.
func (q *request) deliverPrompt(o *schedule.Output) {
	if o.PromptLogprobs == nil {
		return
	}
	q.stream.buffer(q.choice, func(d *Delta) { q.addPromptLogprobs(d, o) })
}

// addPromptLogprobs appends the positions that became known. The first token has none: nothing
// precedes it.
func (q *request) addPromptLogprobs(d *Delta, o *schedule.Output) {
	if o.PromptLogprobs == nil {
		return
	}
	if !q.prompted {
		q.prompted = true
		d.PromptLogprobs = append(d.PromptLogprobs,
			step.Logprobs{Sampled: step.TokenLogprob{Token: q.Prompt[0]}})
	}
	d.PromptLogprobs = append(d.PromptLogprobs, o.PromptLogprobs.Entries...)
}

// advance decodes one token. It returns the text that became certain and the stop string that ended
// the output, if one did.
func (q *request) advance(token int32, finish sample.Finish) (text, stop string) {
	if q.decoder == nil {
		return "", ""
	}
	// A token that stops the output is not part of its text unless asked for.
	var piece string
	if finish != sample.FinishStop || q.IncludeStop {
		piece = q.decoder.Push(token)
	}
	if finish != sample.Unfinished {
		piece += q.decoder.Flush()
	}
	q.text += len(piece)
	q.runes += utf8.RuneCountInString(piece)
	if q.outputs > int(q.Params.MinTokens) {
		text, stop = q.stops.push(piece)
	} else { // as in vLLM, a stop string that ends later may begin here
		text = q.stops.pass(piece)
	}
	if stop == "" && finish != sample.Unfinished {
		text += q.stops.flush()
	}
	return text, stop
}

// finish counts a request that has ended; nothing more is delivered of it.
func (d *delivery) finish(q *request, m *metrics.Engine, how sample.Finish) {
	q.over = true
	observeFinish(m, q, how)
	if len(q.guesses) > 0 {
		d.events.Emit(status.Speculated{Steps: q.guesses, Tokens: q.outputs})
	}
}
