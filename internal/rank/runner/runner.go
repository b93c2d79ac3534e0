// Package runner turns a step plan into tensors, runs the model and samples. It owns the worker's
// side of each request: its tokens, block table and sampling state.
package runner

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// logitElements bounds the logits held at a time (32 MiB of float32).
const logitElements = 8 << 20

// Model is what a runner needs of a model.Model.
type Model interface {
	// Embed makes the hidden state of the batch's tokens, in the first stage. A later one fills
	// what Receive returns, for so many rows.
	Embed(b *compute.Batch) error
	Receive(rows int) *layers.Tensor
	// Layers computes the hidden state after the stage's layers, writing keys and values to the
	// cache.
	Layers(b *compute.Batch, cache compute.Cache) error
	// Hidden is the hidden state.
	Hidden() *layers.Tensor
	// Tapped is what a stage sends on beside it, for Features, ReceiveTapped what the next one
	// fills; nil for nothing.
	Tapped() *layers.Tensor
	ReceiveTapped(rows int) *layers.Tensor
	// Logits computes, in the last stage, the logits of chosen rows: on the first rank they are
	// [len(rows)][vocabulary], to be changed until it is called again; elsewhere nil.
	Logits(rows []int32) (*layers.Tensor, error)
	// Final computes, in the last stage, chosen rows of the hidden state after the final norm.
	Final(rows []int32) (*layers.Tensor, error)
	// Features are what a head goes on from of chosen rows, and Reduce is what a head makes of a
	// model's, to be received by it.
	Features(rows []int32) (*layers.Tensor, error)
	Reduce(features *layers.Tensor) *layers.Tensor
	// Adapted says whether the adapter of an id is there.
	Adapted(id uint32) bool
	// Failed is the first error of the device: what it computed since is undefined. It is known
	// once something has waited for the device.
	Failed() error
	// Finish waits for the device, and returns Failed.
	Finish() error
}

// Sampler is a device that chooses tokens where it has the logits.
type Sampler interface {
	// Samples says whether it can do what a row of so many logits asks for, whatever its State,
	// Mask and Position.
	Samples(r *sample.Row, vocab int) bool
	// Sample sets the results of the rows; the logits may be changed. Its error is the device's.
	Sample(logits *layers.Tensor, rows []sample.Row) error
}

// Options configure a Runner.
type Options struct {
	Model Model
	Cache compute.Cache
	// Pool is the threads that sample.
	Pool *pool.Pool
	// Sampler, unless it is nil, samples what it can.
	Sampler Sampler
	// BlockSize, Blocks and States describe the rank's cache; no blocks are a model without one.
	BlockSize, Blocks, States int
	// Factors are CacheShape.Factor of each group of layers; nil is one group.
	Factors []int
	// DraftStates are the last of States: those of drafts, which a request goes back to that turned
	// out to be wrong.
	DraftStates int
	// Vocab is the width of a row of logits.
	Vocab int
	// MaxSeqs is the number of slots, of which each of the places among which requests are divided
	// has an equal part, in order; MaxModelLen bounds the tokens of one request.
	MaxSeqs, MaxModelLen int
	// MaxInFlight is how many plans may be in flight; 0 is 1.
	MaxInFlight int
	// Layout is how the ranks of the group divide the model, Rank this one's number.
	Layout layout.Layout
	Rank   int
	// From and To are the layers of the rank's stage: From to To-1 of the model's.
	From, To int
	// TP are the ranks that share the layers with this one, PCP those that divide long prompts, DP
	// those that have its place in others among which requests are divided, PP the other stages;
	// nil where there are no others.
	TP, PCP, DP Broadcaster
	PP          Messenger
	// Grammars compiles the constraints of requests; only the output rank uses it.
	Grammars *grammars.Cache
	// DraftRows is how many rows a plan has at most whose result says what tokens the constraints
	// of requests force.
	DraftRows int
	// Draft guesses tokens on the output rank; nil where no model does. Head, which every rank is
	// told, is that it is no whole model, but computes each position from the model's hidden states
	// there and the token after it: the states of the requests that a plan lists go to the output
	// rank.
	Draft *Draft
	Head  bool
	// Status learns when ranks exchange tokens and when they choose them.
	Status *status.Rank
	// Trail, unless it is nil, is where the hashes of plans go.
	Trail *Trail
}

// Runner executes plans one at a time. After an error its state is undefined: the worker must stop.
type Runner struct {
	opt Options
	// place is the rank's place in its layout. The output rank samples and reports results; first
	// and last are the stages.
	place               layout.Place
	first, last, output bool
	slots               []slot
	released            []*bound // of slots that the plan frees

	batch  compute.Batch
	caches []caching // of each group
	// sequences is how many the batch has.
	sequences int32
	wants     []want
	states    []state // of the positions that a head is to have
	round     []int   // of a piece's wants, those that are chosen for at a time
	mask      []uint32
	split     split
	rows      []int32
	mean      []float32
	shared    []byte
	pushed    pushed
	// guarded is the hash of the plan at hand.
	guarded uint64
	// pieceRows is how many rows of logits are computed at a time.
	pieceRows int
	// choices are what became of the piece's rows; chosen by the device, if it can, or the host.
	choices  []choice
	sampling sampleTask
	onDevice deviceTask
	guesser  guesser
	// unused are those of DraftStates that no slot has.
	unused []int32
}

// slot is what a worker knows of one running request.
type slot struct {
	used      bool
	promptLen int
	// tokens are those that rows have computed or the request came with; elsewhere stands for one
	// that this rank does not know. sampled is the next one, noToken when none has been sampled.
	tokens  []int32
	sampled int32
	// drafted is how many of the last tokens are drafts, going that each so far has been sampled.
	drafted int
	going   bool
	ahead   ahead
	// kept are where the states are before each of the drafts; none without such.
	kept []int32
	// sampler is the plan that samples a token which the output rank will push, 0 for none.
	sampler uint64
	// table is as plans say it, a block of each group for each BlockSize positions.
	table   []int32
	params  sample.Params
	pooling step.Pooling
	// pool is what of the states is pooled so far.
	pool []float64
	// states are those of all tokens so far, of step.PoolAll.
	states []float32
	// second is where tokens of another type begin, 0 for nowhere.
	second int
	// adapter is the id of the request's, 0 for none.
	adapter uint32
	state   *sample.State
	// bound keeps the output within the request's constraint, nil without one.
	bound *bound
	// trail is the hash of all that plans have said of the request.
	trail uint64
}

// What stands in the place of a token: there is none, or another rank has it.
const (
	noToken   = -1
	elsewhere = -2
)

// sent is a row whose hidden state the first of the ranks has that divide rows among them.
type sent struct {
	// row is that of the batch; of one that another rank computes alone, its number among the rows
	// that are wanted of that rank, until divide knows where they go.
	row int32
	// place is that of the rank that computes the row, 0 if all do.
	place int
}

// state is the hidden state of a position of a plan's row, which a head goes on from.
type state struct {
	sent
	seq      int32
	position int
}

// want is one row whose logits are needed.
type want struct {
	sent
	slot uint32
	// target is the prompt position the row predicts, toSample when it samples the next token, or
	// intoPool when it is pooled; last is the last one of those.
	target int32
	last   bool
	// position is that of the row, unless it is to predict a token of the prompt.
	position int
}

// What a row is wanted for, when it is not to predict a token of the prompt.
const (
	toSample = -1
	intoPool = -2
)

// New makes a runner with MaxSeqs empty slots.
func New(opt Options) *Runner {
	opt.Layout, opt.MaxInFlight = opt.Layout.Sizes(), max(1, opt.MaxInFlight)
	place := opt.Layout.Place(opt.Rank)
	r := &Runner{
		opt: opt, slots: make([]slot, opt.MaxSeqs), pieceRows: max(1, logitElements/opt.Vocab),
		place: place, first: place.PP == 0, last: place.PP == opt.Layout.PP-1,
		output: opt.Rank == opt.Layout.Output(),
	}
	r.caches = newCaching(opt.Factors, opt.MaxSeqs)
	for i := range opt.DraftStates {
		r.unused = append(r.unused, int32(opt.States-1-i))
	}
	r.split.init(opt.Layout, opt.Rank)
	r.sampling.init(r, opt.Pool.Threads())
	r.onDevice.r = r
	r.guesser.use(r, opt.Draft)
	return r
}

// Use has the runner compute with other weights and another cache, and guess with another draft
// model, from the next plan on. What caches had of requests is gone: the driver introduces them
// again.
func (r *Runner) Use(m Model, c compute.Cache, d *Draft) {
	r.opt.Model, r.opt.Cache = m, c
	r.guesser.use(r, d)
}

// Execute runs one plan. On the output rank res is filled with its result; elsewhere only res.Plan
// is. It allocates nothing in steady decoding.
//
// Ranks that sum together wait until the step is computed, whether they answer or not: others need
// what they compute, and learn of a fault of theirs in no other way.
func (r *Runner) Execute(p *step.Plan, res *step.Result) error {
	alone := r.opt.TP == nil && r.opt.DP == nil
	if err := r.execute(p, res); err != nil || alone || len(p.Rows) == 0 {
		return err
	}
	return r.opt.Model.Finish()
}

func (r *Runner) execute(p *step.Plan, res *step.Result) error {
	res.Reset(p.ID)
	if err := r.guesser.computeLeaving(p.Free); err != nil {
		return err
	}
	if err := r.update(p); err != nil {
		return err
	}
	if len(p.Rows) == 0 {
		return nil
	}
	if err := r.check(p); err != nil {
		return err
	}
	r.guard(p)
	pushes := r.opt.Layout.PP > 1
	if pushes && r.opt.Rank == 0 {
		if err := r.receive(p); err != nil {
			return err
		}
	}
	if err := r.share(p); err != nil {
		return err
	}
	if err := r.build(p); err != nil {
		return err
	}
	if pushes && r.opt.Rank == 0 {
		r.expect(p)
	}
	r.copyStates(p.Restore, true)
	if err := r.forward(); err != nil {
		return err
	}
	r.copyStates(p.Save, false)
	if !r.last {
		return nil
	}
	for at := 0; at < len(r.wants); {
		end, f := at+r.pieceOf(at), r.sample
		if r.wants[at].target == intoPool {
			f = r.pool
		}
		if err := f(r.wants[at:end], res); err != nil {
			return err
		}
		at = end
	}
	if r.output && len(p.Rows) <= r.opt.DraftRows {
		r.force(res)
	}
	if !r.output {
		return nil
	}
	if pushes {
		if err := r.push(res); err != nil {
			return err
		}
	}
	return r.guesser.guess(p, res)
}

// pieceOf is how many of the wanted rows from one on are taken together: of one kind, and of those
// with logits as many as there is memory for.
func (r *Runner) pieceOf(from int) int {
	pools, n := r.wants[from].target == intoPool, 1
	for from+n < len(r.wants) && (r.wants[from+n].target == intoPool) == pools &&
		(pools || n < r.pieceRows) {
		n++
	}
	return n
}

// copyStates copies kept states to the slots of requests that go on from them, or states of slots
// to where they are kept.
func (r *Runner) copyStates(list []step.Snapshot, toSlot bool) {
	for _, c := range list {
		if r.home(c.Slot) != r.place.DP {
			continue
		}
		to, from := int(c.State), int(c.Slot)%r.placeSlots()
		if toSlot {
			to, from = from, to
		}
		r.opt.Cache.CopyState(to, from)
	}
}

// check refuses rows of slots that hold no request, and states that are no place to keep one.
func (r *Runner) check(p *step.Plan) error {
	for i := range p.Rows {
		if id := p.Rows[i].Slot; int(id) >= len(r.slots) || !r.slots[id].used {
			return fmt.Errorf("plan %d schedules slot %d, which holds no request", p.ID, id)
		}
	}
	for _, list := range [][]step.Snapshot{p.Restore, p.Save} {
		for _, c := range list {
			if int(c.Slot) >= len(r.slots) || !r.slots[c.Slot].used ||
				int(c.State) < r.placeSlots() || int(c.State) >= r.opt.States {
				return fmt.Errorf("plan %d copies between slot %d of %d and state %d of %d", p.ID,
					c.Slot, len(r.slots), c.State, r.opt.States)
			}
		}
	}
	return nil
}

// update forgets freed slots and learns new ones.
func (r *Runner) update(p *step.Plan) error {
	// A grammar that goes on in another slot stays in use between the two.
	defer r.releaseGrammars()
	for _, id := range p.Free {
		if int(id) >= len(r.slots) {
			return fmt.Errorf("plan %d frees slot %d of %d", p.ID, id, len(r.slots))
		}
		r.slots[id].used = false
		if b := r.slots[id].bound; b != nil {
			r.released = append(r.released, b)
		}
		r.slots[id].state, r.slots[id].bound = nil, nil
		r.releaseStates(&r.slots[id])
	}
	for i := range p.New {
		n := &p.New[i]
		if int(n.Slot) >= len(r.slots) || r.slots[n.Slot].used {
			return fmt.Errorf("plan %d starts a request in slot %d, which is taken or out of range",
				p.ID, n.Slot)
		}
		if int(n.PromptLen) > len(n.Tokens) || len(n.Tokens) > r.opt.MaxModelLen {
			return fmt.Errorf("plan %d: request in slot %d has %d tokens, %d of them prompt",
				p.ID, n.Slot, len(n.Tokens), n.PromptLen)
		}
		if n.Adapter != 0 && !r.opt.Model.Adapted(n.Adapter) {
			return fmt.Errorf("plan %d: request in slot %d has adapter %d, which is not loaded",
				p.ID, n.Slot, n.Adapter)
		}
		for _, t := range n.Tokens {
			if t < 0 || int(t) >= r.opt.Vocab {
				return fmt.Errorf("plan %d: token %d is outside the vocabulary of %d", p.ID, t,
					r.opt.Vocab)
			}
		}
		s := &r.slots[n.Slot]
		s.used = true
		s.promptLen = int(n.PromptLen)
		s.tokens = append(s.tokens[:0], n.Tokens...)
		s.sampled, s.sampler, s.drafted = noToken, 0, 0
		s.ahead.reset(n.Adapter)
		r.cutTable(n.Slot, 0)
		if err := r.extendTable(n.Slot, n.Blocks); err != nil {
			return fmt.Errorf("plan %d: %w", p.ID, err)
		}
		s.trail = trailOfNew(n)
		s.params.Set(&n.Params) // the plan's memory holds another one soon
		s.pooling, s.pool, s.second = n.Pooling, s.pool[:0], int(n.Second)
		s.adapter = n.Adapter
		if r.output {
			s.state = sample.NewState(&s.params, s.tokens[:n.PromptLen], s.tokens[n.PromptLen:])
			s.bound = r.bind(n.Constraint, &s.params, s.tokens[n.PromptLen:])
		}
	}
	return nil
}

// build lays the plan's requests out as rows.
func (r *Runner) build(p *step.Plan) error {
	b := &r.batch
	b.Tokens, b.Slots = b.Tokens[:0], b.Slots[:0]
	b.Position, b.Seq, b.Types = b.Position[:0], b.Seq[:0], b.Types[:0]
	b.Split.Rows, b.Split.Slots = b.Split.Rows[:0], b.Split.Slots[:0]
	b.Split.Wanted = b.Split.Wanted[:0]
	b.Adapters = b.Adapters[:0]
	b.States, b.Kept = b.States[:0], b.Kept[:0]
	r.wants, r.states = r.wants[:0], r.states[:0]
	r.sequences = 0
	for g := range r.caches {
		c := &r.caches[g]
		c.slots, c.tables = c.slots[:0], c.tables[:0]
	}
	r.split.reset()
	blocks, drafts := p.Blocks, p.Drafts
	for i := range p.Rows {
		row := &p.Rows[i]
		s := &r.slots[row.Slot]
		n, drafted := int(row.Blocks), row.Drafts()
		if n > len(blocks) || drafted > len(drafts) {
			return fmt.Errorf("plan %d: slot %d is given %d new blocks and %d drafts, %d and %d "+
				"are listed", p.ID, row.Slot, n, drafted, len(blocks), len(drafts))
		}
		r.goBack(row, s)
		r.retract(row.Slot, int(row.Start))
		if err := r.extendTable(row.Slot, blocks[:n]); err != nil {
			return fmt.Errorf("plan %d: %w", p.ID, err)
		}
		blocks = blocks[n:]
		if err := r.appendLast(row, s, drafts[:drafted]); err != nil {
			return fmt.Errorf("plan %d: %w", p.ID, err)
		}
		drafts = drafts[drafted:]
		if err := r.reserveStates(row, s); err != nil {
			return fmt.Errorf("plan %d: %w", p.ID, err)
		}
		listed := r.opt.Head && slices.ContainsFunc(p.Guess, func(g step.Guess) bool {
			return g.Slot == row.Slot
		})
		if err := r.addRows(row, i, s, listed); err != nil {
			return fmt.Errorf("plan %d: %w", p.ID, err)
		}
	}
	b.Turn, b.Groups = int32(p.ID), len(r.caches)
	b.Tables = b.Tables[:0]
	for g := range r.caches {
		b.Slots = append(b.Slots, r.caches[g].slots...)
		b.Tables = append(b.Tables, r.caches[g].tables...)
	}
	r.divide()
	return nil
}

// appendLast appends the token that the row goes on from to those of the request, unless it came
// with them, and the drafts after it.
func (r *Runner) appendLast(row *step.Row, s *slot, drafts []int32) error {
	token, known := row.Last, true
	switch row.Source {
	case step.FromRequest:
		return nil
	case step.FromPlan:
		if s.sampled >= 0 && s.sampled != token {
			return fmt.Errorf("slot %d goes on with token %d, but sampled %d", row.Slot, token,
				s.sampled)
		}
	case step.FromSampler:
		token = s.sampled
		known = r.first || r.output
		if token == noToken || token == elsewhere && known {
			return fmt.Errorf("slot %d goes on with a token that was not sampled", row.Slot)
		}
	}
	if known && (token < 0 || int(token) >= r.opt.Vocab) {
		return fmt.Errorf("token %d is outside the vocabulary of %d", token, r.opt.Vocab)
	}
	if int(row.Start) != len(s.tokens) || row.Count == 0 {
		return fmt.Errorf("slot %d is given %d tokens from position %d after %d tokens",
			row.Slot, row.Count, row.Start, len(s.tokens))
	}
	for _, t := range drafts {
		if t < 0 || int(t) >= r.opt.Vocab {
			return fmt.Errorf("draft %d is outside the vocabulary of %d", t, r.opt.Vocab)
		}
	}
	s.tokens = append(append(s.tokens, token), drafts...)
	s.sampled, s.sampler, s.drafted = noToken, 0, len(drafts)
	s.goOn(token)
	return nil
}

// sample computes the logits of some wanted rows and, on the output rank, chooses tokens.
func (r *Runner) sample(wants []want, res *step.Result) error {
	r.rows = r.rows[:0]
	for _, w := range wants {
		r.rows = append(r.rows, w.row)
	}
	logits, err := r.opt.Model.Logits(r.rows)
	if err != nil || !r.output {
		return err
	}
	r.opt.Status.Set(status.Sample, 0)
	r.awaitGrammar(wants)
	for len(r.choices) < len(wants) {
		r.choices = append(r.choices, choice{})
	}
	wanted := r.going(wants[0])
	if err := r.choose(wants, logits); err != nil {
		return err
	}
	for i, w := range wants {
		c, s := &r.choices[i], &r.slots[w.slot]
		if i > 0 {
			wanted = !r.follows(w) || wanted && r.choices[i-1].token == s.tokens[w.position]
		}
		switch {
		case !wanted:
			continue
		case w.target >= 0:
			r.reportPrompt(w, c, res)
			continue
		}
		s.sampled = following(c.token)
		switch {
		case s.pooling == step.PoolLogits && c.token >= 0:
			copy(res.Pool(w.slot, len(c.pooled)), c.pooled)
			continue
		case r.follows(w):
			res.Extend(c.token)
		default:
			res.Append(w.slot, c.token)
		}
		if s.params.Logprobs != sample.NoLogprobs {
			res.Logprobs = append(res.Logprobs, c.logprobs(w.slot))
		}
	}
	return nil
}

// following is what a row goes on with that was planned before it was known that its token is
// unsound. The request has ended by then: any token will do.
func following(token int32) int32 { return max(token, 0) }

// reportPrompt adds one prompt position to the request's run of positions.
func (r *Runner) reportPrompt(w want, c *choice, res *step.Result) {
	last := len(res.PromptLogprobs) - 1
	if last < 0 || res.PromptLogprobs[last].Slot != w.slot {
		res.PromptLogprobs = append(res.PromptLogprobs,
			step.PromptLogprobs{Slot: w.slot, Start: uint32(w.target)})
		last++
	}
	run := &res.PromptLogprobs[last]
	run.Entries = append(run.Entries, c.logprobs(w.slot))
}
