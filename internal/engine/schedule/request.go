package schedule

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Request is one sequence to generate. The scheduler keeps its state of it in the same record,
// which therefore is added once and stays where it is until it ended; the fields declared here must
// not change meanwhile.
type Request struct {
	// Key names the request in Abort and Output; no two unfinished requests may share one.
	Key uint64
	// Prompt are its token ids, at least one and fewer than Config.MaxModelLen, or as many where
	// Pooling reads them only. Several requests may share it.
	Prompt []int32
	// Params are resolved. When they ask for prompt logprobs, the whole prompt is computed,
	// whatever the prefix cache holds.
	Params sample.Params
	// Constraint is the language that the output keeps to.
	Constraint constrain.Spec
	// Repetition ends an output that repeats itself.
	Repetition Repetition
	// Pooling makes it a request for hidden states of the prompt: Params.MaxTokens is 1.
	Pooling step.Pooling
	// Second is where the second text of a pair begins in Prompt, for models that tell them apart;
	// 0 for none.
	Second uint32
	// Salt separates the prefix cache: only requests of equal salt, and adapter, share blocks.
	Salt string
	// Adapter is the id of the adapter that it is computed with, 0 for none.
	Adapter uint32
	// AdapterName names the adapter by all that is in it, where blocks outlive the server, which
	// gives out the ids.
	AdapterName string
	// Priority orders requests under Config.Priority, smaller first.
	Priority int
	// Client is whose request it is: those of different clients take turns (see turns). Index is
	// its number, from 0, among the requests that are added together, one after the other, such as
	// the choices of one answer.
	Client string
	Index  int
	// Background requests take what others leave: they start when no other waits, are preempted for
	// those that do, and have turns of their own.
	Background bool
	// Source, unless it is 0, is a number for where the keys and values of Remote leading tokens of
	// the prompt come from (see Fetch): requests that are the same beginning of the same prompt
	// have the same. With Config.Offload the scheduler makes it what was stored of the request.
	Source uint64
	Remote int
	// HandOver keeps the prompt's blocks after the end of the request, until Release: the last
	// Output says which they are.
	HandOver bool
	// Owner is given back in Output: what the request is to the caller.
	Owner any

	scheduled
}

// Output is what one step brought for one request.
type Output struct {
	// Key and Owner are the request's, Place is where it is (see Places).
	Key   uint64
	Owner any
	Place int
	// Tokens are the sampled tokens in order, none when the step computed a part of the prompt and
	// only PromptLogprobs are new. They lie in the Result and live as long as that.
	Tokens []int32
	// Guessed is how many drafts the step verified, of which all Tokens but the last were right.
	Guessed int
	// Finish is other than Unfinished in the last Output of a request; one that was aborted has no
	// further Output.
	Finish sample.Finish
	// Fault is why Finish is FinishError: sample.Unsound, sample.Stuck or sample.Spent. Else it is
	// 0.
	Fault int32
	// Pooled is what a request that pools gets beside its token, which means nothing. It lies in
	// the Result and lives as long as that.
	Pooled []float32
	// StopToken is the one of Params.StopTokens that ended the request, else -1, also at EOS.
	StopToken int32
	// Cached is how many prompt tokens came from the prefix cache when the request first ran.
	Cached int
	// Logprobs describes the choice of each token when that was asked for, else it is nil. It lies
	// in the Result and lives as long as that.
	Logprobs []step.Logprobs
	// HandOver is the pinned blocks of a request that asks for it, in the last Output; nil when its
	// prompt fills no block, or its blocks were taken from it.
	HandOver *HandOver
	// PromptLogprobs are prompt positions not reported before, in order and without gaps over the
	// life of the request, also when it is preempted. It points into the Result and lives as long
	// as that.
	PromptLogprobs *step.PromptLogprobs
}

// scheduled is what the scheduler knows of a Request.
//
// It has a place in two orders. Waiting is a heap by turns (before): a preempted request that is
// the first of its lot waits before those that would have started after it. Running is sorted by
// index in the lot, then by turns (outlasts): when blocks run out, lots give up what they have more
// of than others, and then the latest goes first.
type scheduled struct {
	place    int
	priority int    // Priority, or 0 for all unless Config.Priority
	turn     uint64 // see turns
	arrival  uint64

	// tokens are the prompt and the output so far. Until the request first runs it is the caller's
	// slice.
	tokens []int32
	prompt int // how many of tokens are the prompt
	seq    kvcache.Sequence
	// computed is how many leading tokens have their keys and values, counting the plans in flight.
	computed int
	// sent is how many leading tokens the ranks learned by NewRequest; those after come with rows.
	sent int
	// pending is how many tokens plans in flight sample: they come after tokens, and are not known
	// yet. (vLLM calls them num_output_placeholders.)
	pending int
	// drafts are those of the plan in flight that verifies some, which is the request's last one
	// then.
	drafts  []int32
	drafter draft.Drafter
	// forced are those that will come after tokens, most probably, as the ranks say.
	forced []int32
	// guessed are those that the draft model says of the newest of tokens; asked says that the
	// newest plan in flight asks for some.
	guessed []int32
	asked   bool
	// sampler is the newest plan that samples, or sampled, a token of the request.
	sampler uint64
	// wrote is the newest plan that computes some of the prompt, or with which the request has
	// started.
	wrote uint64
	// ran says that the request has run; cached is then Output.Cached.
	ran    bool
	cached int
	// repeats follows the output for Repetition.
	repeats repeats
	// prompted is how much of the prompt has been computed at least once.
	prompted int
	// reported is the prompt position whose logprob is to be reported next.
	reported uint32

	running bool
	slot    uint32 // while running
	// remote is how far the keys and values are that another engine has. stale says that what is
	// fetched is of an old model, cancelled that no request waits for it.
	remote    remote
	stale     bool
	cancelled bool
	// gathered says that no request starts before it has come.
	gathered bool
	// fetchFrom is the first block of its last fetch, came how many tokens that has brought.
	fetchFrom, came int
	// offered is how many leading blocks it was asked to store since invalidated was that of the
	// scheduler.
	offered     int
	invalidated uint64
	// suspended says that Suspend keeps it from running: it is in Scheduler.suspended.
	suspended bool
	heap      int // index in waiting, while neither running nor held
	done      bool
}

// Place is the number of the place that the request is at: see Places.
func (r *Request) Place() int { return r.place }

// Begun tells whether an Output had something of the answer: tokens, or log-probabilities of the
// prompt.
func (r *Request) Begun() bool {
	return r.prompt > 0 && len(r.tokens) > r.prompt || r.reported > 1
}

// CacheSalt separates the prefix cache: it is another one for every Salt and Adapter.
func (r *Request) CacheSalt() string {
	if r.Adapter == 0 && !strings.HasPrefix(r.Salt, "\x00") {
		return r.Salt
	}
	name := []byte(r.AdapterName)
	if len(name) == 0 {
		name = binary.LittleEndian.AppendUint32(nil, r.Adapter)
	}
	return "\x00" + string(name) + r.Salt
}

// class is 1 for a request in the background, else 0.
func (r *Request) class() int {
	if r.Background {
		return 1
	}
	return 0
}

// before tells whether a waiting request starts before another.
func (r *Request) before(o *Request) bool {
	return cmp.Or(cmp.Compare(r.class(), o.class()), cmp.Compare(r.priority, o.priority),
		cmp.Compare(r.turn, o.turn), cmp.Compare(r.Index, o.Index), cmp.Compare(r.arrival,
			o.arrival)) < 0
}

// outlasts tells whether a running request is preempted after another.
func (r *Request) outlasts(o *Request) bool {
	return cmp.Or(cmp.Compare(r.class(), o.class()), cmp.Compare(r.priority, o.priority),
		cmp.Compare(r.Index, o.Index), cmp.Compare(r.turn, o.turn), cmp.Compare(r.arrival,
			o.arrival)) < 0
}

// computesAll tells whether the request computes its whole prompt, whatever is known of it.
func (r *Request) computesAll() bool {
	return r.Params.PromptLogprobs != sample.NoLogprobs || r.Pooling.ReadsAll()
}

// length is the number of tokens, those included that plans in flight sample.
func (r *Request) length() int { return len(r.tokens) + r.pending }

// planned tells whether the tokens in flight are the last ones: the longest output or the longest
// sequence is reached with them.
func (r *Request) planned(maxModelLen int) bool {
	if r.pending == 0 {
		return false
	}
	return r.length()-r.prompt >= int(r.Params.MaxTokens) || r.length() >= maxModelLen
}

// onItsWay tells whether the first of so many stages cannot have the request's newest token yet
// when it gets to the plan of a number: the stages before the last one that samples are busy with
// the plans between.
func (r *Request) onItsWay(plan uint64, stages int) bool {
	return r.pending > 0 && plan-r.sampler < uint64(stages)
}

// accept appends sampled tokens up to the one that ends the request, and returns how many those
// are.
func (r *Request) accept(tokens []int32, maxModelLen int) (n int, finish sample.Finish,
	stop int32) {
	for i, t := range tokens {
		if t < 0 {
			return i, sample.FinishError, -1
		}
		r.tokens = append(r.tokens, t)
		if finish, stop := r.stop(maxModelLen); finish != sample.Unfinished {
			return i + 1, finish, stop
		}
	}
	return len(tokens), sample.Unfinished, -1
}

// stop returns whether the newest token ends the request, and the stop token if one did. The order
// of the checks is vLLM's (v1/core/sched/utils.py, check_stop): EOS, stop tokens, lengths, and
// from MinTokens on repetition. Before it, an end is drawn where a constraint leaves nothing else.
func (r *Request) stop(maxModelLen int) (sample.Finish, int32) {
	p, output := &r.Params, len(r.tokens)-r.prompt
	last := r.tokens[len(r.tokens)-1]
	if last == p.EOS && !p.IgnoreEOS {
		return sample.FinishStop, -1
	}
	for _, t := range p.StopTokens {
		if t == last {
			return sample.FinishStop, t
		}
	}
	if output >= int(p.MaxTokens) || len(r.tokens) >= maxModelLen {
		return sample.FinishLength, -1
	}
	if output >= int(p.MinTokens) &&
		r.repeats.find(r.tokens[r.prompt:], r.Repetition, int(p.MaxTokens)) {
		return sample.FinishRepetition, -1
	}
	return sample.Unfinished, -1
}
