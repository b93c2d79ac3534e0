package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// TestTranscripts replays testdata/*.txt (see package transcripts). The commands are those of
// transcript.command.
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		tr := &transcript{T: t}
		return tr.command
	})
}

type transcript struct {
	*testing.T
	config Config
	s      *Scheduler
	worker *worker
	plan   step.Plan
	due    []*planned
	// fetches are all that were asked for.
	fetches []Fetch
}

// planned is a plan in flight. The worker model executes it when its result is asked for, or when
// the workers are lost; then result is not nil.
type planned struct {
	plan   step.Plan
	keys   map[uint32]uint64 // by slot
	result *step.Result
}

func (tr *transcript) command(name string, args []string) string {
	tr.Helper()
	switch name {
	case "config":
		// Begins anew. Lengths are in tokens, blocks of four; flights is how many plans may be in
		// flight, 1 if not given.
		//
		// Example:
		//
		// config seqs=4 tokens=16 len=64 block=4 blocks=16 flights=2 stages=2 long=8 no-cache
		// no-chunks priority
		return tr.configure(args)
	case "add":
		// Adds the request of a key. A prompt is token ids and ranges of them.
		//
		// Example:
		//
		// add 7 prompt=1..10,5 max=3 min=1 eos=2 stop=3,4 ignore-eos logprobs prompt-logprobs
		// salt=x prio=1 client=a index=0 background source=1 remote=8 hand-over
		tr.add(args)
	case "step":
		// Makes a plan, sends it to the worker model, and prints it: "idle" if there is nothing to
		// do, "wait" if there is nothing to do before the next result.
		//
		// Example:
		//
		// step
		return tr.step()
	case "sample":
		// Has the worker model execute the oldest plan in flight, and applies the result. A
		// request's n-th output is 100*key+n where no token is given for it.
		//
		// Example:
		//
		// sample 7=12 8=2
		return tr.sample(args)
	case "run":
		// Does step and sample, a number of times.
		//
		// Example:
		//
		// run 3
		var b strings.Builder
		for range tr.number(args[0]) {
			b.WriteString(tr.step() + tr.sample(nil))
		}
		return b.String()
	case "result":
		// Pins an empty result of the plan of a number, and prints what is wrong with it.
		//
		// Example:
		//
		// result 3
		if err := tr.s.Check(&step.Result{Plan: uint64(tr.number(args[0]))}); err != nil {
			return err.Error() + "\n"
		}
	case "received":
		// What a request has asked for has come, or is lost.
		//
		// Example:
		//
		// fetched 7
		// fetched 7 lost
		key := uint64(tr.number(args[0]))
		blocks := 0
		for _, f := range tr.fetches {
			if len(args) == 1 && f.Key == key {
				blocks = len(f.Blocks)
				tr.worker.memorise(f, f.Owner.(*Request).Prompt)
			}
		}
		tr.s.Fetched(key, blocks)
	case "release":
		// Gives up what was kept of a request.
		//
		// Example:
		//
		// release 7
		tr.s.Release(uint64(tr.number(args[0])))
	case "abort":
		// Aborts the request of a key.
		//
		// Example:
		//
		// abort 7
		if !tr.s.Abort(uint64(tr.number(args[0]))) {
			return "unknown\n"
		}
		if keys := tr.s.Cancelled(nil); len(keys) > 0 {
			return fmt.Sprintf("nobody waits for %v\n", keys)
		}
	case "forget":
		// The workers' weights or cache are others now: what they have computed is void.
		//
		// Example:
		//
		// forget
		tr.s.Invalidate()
	case "preempt-all":
		// Replaces the workers by new ones, or with "remembered" by a new group of the same ones.
		// The results of plans in flight still come, too late.
		//
		// Example:
		//
		// preempt-all
		for _, p := range tr.due {
			tr.execute(p, nil)
		}
		remembered := slices.Contains(args, "remembered")
		tr.s.PreemptAll(remembered)
		tr.worker = tr.worker.replace(tr.config, remembered)
	case "state":
		// Prints Scheduler.String.
		//
		// Example:
		//
		// state
		return tr.s.String()
	default:
		tr.Fatalf("unknown command %q", name)
	}
	if err := tr.s.check(); err != nil {
		tr.Fatal(err)
	}
	return ""
}

func (tr *transcript) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		tr.Fatal(err)
	}
	return n
}

// tokens reads "1..4,9" as 1,2,3,4,9.
func (tr *transcript) tokens(s string) []int32 {
	var v []int32
	for _, part := range strings.Split(s, ",") {
		from, to, isRange := strings.Cut(part, "..")
		if !isRange {
			to = from
		}
		for n := tr.number(from); n <= tr.number(to); n++ {
			v = append(v, int32(n))
		}
	}
	return v
}

// spell writes tokens as tokens reads them.
func spell(v []int32) string {
	var parts []string
	for i := 0; i < len(v); {
		j := i
		for j+1 < len(v) && v[j+1] == v[j]+1 {
			j++
		}
		if j > i+1 {
			parts = append(parts, fmt.Sprintf("%d..%d", v[i], v[j]))
			i = j + 1
			continue
		}
		parts = append(parts, fmt.Sprint(v[i]))
		i++
	}
	return strings.Join(parts, ",")
}

func (tr *transcript) configure(args []string) string {
	c := Config{PrefixCaching: true, ChunkedPrefill: true}
	numbers := map[string]*int{"seqs": &c.MaxSeqs, "tokens": &c.MaxTokens, "len": &c.MaxModelLen,
		"block": &c.BlockSize, "blocks": &c.Blocks, "flights": &c.MaxInFlight,
		"adapters": &c.MaxAdapters, "stages": &c.Stages, "long": &c.LongPrefillTokens}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		if to := numbers[name]; to != nil {
			*to = tr.number(value)
			continue
		}
		switch name {
		case "no-cache":
			c.PrefixCaching = false
		case "no-chunks":
			c.ChunkedPrefill = false
		case "priority":
			c.Priority = true
		default:
			tr.Fatalf("config: unknown %q", a)
		}
	}
	s, err := New(c)
	if err != nil {
		return err.Error() + "\n"
	}
	tr.config, tr.s, tr.worker, tr.due = c, s, newWorker(c), nil
	tr.fetches = nil
	return ""
}

func (tr *transcript) add(args []string) {
	q := &Request{Key: uint64(tr.number(args[0]))}
	p := &q.Params
	*p = sample.Params{
		MaxTokens: 100, EOS: -1, Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs,
	}
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "prompt":
			q.Prompt = tr.tokens(value)
		case "max":
			p.MaxTokens = int32(tr.number(value))
		case "min":
			p.MinTokens = int32(tr.number(value))
		case "eos":
			p.EOS = int32(tr.number(value))
		case "stop":
			p.StopTokens = tr.tokens(value)
		case "ignore-eos":
			p.IgnoreEOS = true
		case "logprobs":
			p.Logprobs = 0
		case "prompt-logprobs":
			p.PromptLogprobs = 0
		case "salt":
			q.Salt = value
		case "adapter":
			q.Adapter = uint32(tr.number(value))
		case "prio":
			q.Priority = tr.number(value)
		case "client":
			q.Client = value
		case "index":
			q.Index = tr.number(value)
		case "background":
			q.Background = true
		case "source":
			q.Source = uint64(tr.number(value))
		case "remote":
			q.Remote = tr.number(value)
		case "hand-over":
			q.HandOver = true
		default:
			tr.Fatalf("add: unknown %q", a)
		}
	}
	q.Owner = q
	tr.s.Add(q)
}

func (tr *transcript) step() string {
	made := tr.s.Schedule(&tr.plan)
	var fetches strings.Builder
	from := len(tr.fetches)
	tr.fetches = tr.s.Fetches(tr.fetches)
	for _, f := range tr.fetches[from:] {
		fmt.Fprintf(&fetches, "  fetch for %d: blocks %v from %d on, after plan %d\n", f.Key,
			f.Blocks, f.First, f.Plan)
	}
	for _, o := range tr.s.Pins(nil) {
		fmt.Fprintf(&fetches, "  offer of %d: blocks %v of plan %d\n", o.Key, o.Blocks, o.Plan)
	}
	if !made {
		if tr.s.InFlight() > 0 {
			return fetches.String() + "wait\n"
		}
		return fetches.String() + "idle\n"
	}
	p := &planned{keys: map[uint32]uint64{}}
	if err := step.DecodePlan(step.AppendPlan(nil, &tr.plan), &p.plan); err != nil {
		tr.Fatal(err)
	}
	for _, e := range tr.s.flights[(tr.s.first+tr.s.owed-1)%len(tr.s.flights)].entries {
		p.keys[e.slot] = e.request.Key
	}
	tr.due = append(tr.due, p)
	return tr.print(p) + fetches.String()
}

func (tr *transcript) print(planned *planned) string {
	p := &planned.plan
	var b strings.Builder
	fmt.Fprintf(&b, "plan %d", p.ID)
	if len(p.Free) > 0 {
		fmt.Fprintf(&b, ", free slots %v", p.Free)
	}
	b.WriteByte('\n')
	for _, q := range p.New {
		fmt.Fprintf(&b, "  new slot %d: prompt %s", q.Slot, spell(q.Tokens[:q.PromptLen]))
		if output := q.Tokens[q.PromptLen:]; len(output) > 0 {
			fmt.Fprintf(&b, ", output %s", spell(output))
		}
		fmt.Fprintf(&b, ", blocks %v\n", q.Blocks)
	}
	blocks := p.Blocks
	for _, row := range p.Rows {
		fmt.Fprintf(&b, "  %d in slot %d: compute %d from %d",
			planned.keys[row.Slot], row.Slot, row.Count, row.Start)
		switch row.Source {
		case step.FromPlan:
			fmt.Fprintf(&b, ", last %d", row.Last)
		case step.FromSampler:
			b.WriteString(", last yours")
		}
		if row.Blocks > 0 {
			fmt.Fprintf(&b, ", blocks +%v", blocks[:row.Blocks])
			blocks = blocks[row.Blocks:]
		}
		if row.Sample {
			b.WriteString(", sample")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// execute runs a plan on the worker model, with the tokens that are given by key.
func (tr *transcript) execute(p *planned, given map[uint64]int32) {
	tr.worker.choose = func(slot uint32) int32 {
		key := p.keys[slot]
		if token, ok := given[key]; ok {
			return token
		}
		s := tr.worker.slots[slot]
		return int32(100*int(key) + len(s.tokens) - s.prompt + 1)
	}
	var err error
	if p.result, err = tr.worker.execute(tr.config, &p.plan, 1000); err != nil {
		tr.Fatalf("%v\n%s", err, tr.print(p))
	}
}

func (tr *transcript) sample(args []string) string {
	if len(tr.due) == 0 {
		return ""
	}
	p := tr.due[0]
	tr.due = tr.due[1:]
	if p.result == nil {
		given := map[uint64]int32{}
		for _, a := range args {
			key, token, _ := strings.Cut(a, "=")
			given[uint64(tr.number(key))] = int32(tr.number(token))
		}
		tr.execute(p, given)
	}
	if err := tr.s.Check(p.result); err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, o := range tr.s.Update(p.result, nil) {
		fmt.Fprintf(&b, "  -> %d:", o.Key)
		for _, t := range o.Tokens {
			fmt.Fprintf(&b, " token %d", t)
		}
		if o.Logprobs != nil {
			b.WriteString(" with logprobs")
		}
		if l := o.PromptLogprobs; l != nil {
			fmt.Fprintf(&b, " prompt logprobs %d..%d", l.Start, int(l.Start)+len(l.Entries)-1)
		}
		if o.Cached > 0 {
			fmt.Fprintf(&b, ", cached %d", o.Cached)
		}
		if o.Finish != sample.Unfinished {
			fmt.Fprintf(&b, ", %v", o.Finish)
		}
		if o.StopToken >= 0 {
			fmt.Fprintf(&b, " by %d", o.StopToken)
		}
		if h := o.HandOver; h != nil {
			fmt.Fprintf(&b, ", keeps blocks %v of plan %d", h.Blocks, h.Plan)
		}
		b.WriteByte('\n')
	}
	if err := tr.s.check(); err != nil {
		tr.Fatal(err)
	}
	return b.String()
}
