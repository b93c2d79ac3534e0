package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/step"
	"github.com/eagleray/eagleray/internal/transcripts"
)

// TestTranscripts replays testdata/*.txt (see package transcripts). Commands:
//
//	config seqs=4 tokens=16 len=64 block=4 blocks=16 [long=8] [no-cache] [no-chunks] [priority]
//	add KEY prompt=1..10,5 [max=3] [min=1] [eos=2] [stop=3,4] [ignore-eos] [logprobs] [prompt-logprobs] [salt=x] [prio=1]
//	step                  makes a plan, which the worker model executes, and prints it
//	sample [KEY=TOKEN …]  applies the result; without a token given, KEY's n-th output is 100*KEY+n
//	run N                 N times step and sample
//	abort KEY
//	preempt-all           the workers are new
//	state
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		tr := &transcript{T: t}
		return tr.command
	})
}

type transcript struct {
	*testing.T
	config  Config
	s       *Scheduler
	worker  *worker
	plan    step.Plan
	result  *step.Result
	outputs map[uint64]int
}

func (tr *transcript) command(name string, args []string) string {
	tr.Helper()
	switch name {
	case "config":
		return tr.configure(args)
	case "add":
		tr.add(args)
	case "step":
		return tr.step()
	case "sample":
		return tr.sample(args)
	case "run":
		var b strings.Builder
		for range tr.number(args[0]) {
			b.WriteString(tr.step() + tr.sample(nil))
		}
		return b.String()
	case "abort":
		if !tr.s.Abort(uint64(tr.number(args[0]))) {
			return "unknown\n"
		}
	case "preempt-all":
		tr.s.PreemptAll()
		plans := tr.worker.plans
		tr.worker = newWorker(tr.config)
		tr.worker.plans = plans
	case "state":
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
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "seqs":
			c.MaxSeqs = tr.number(value)
		case "tokens":
			c.MaxTokens = tr.number(value)
		case "len":
			c.MaxModelLen = tr.number(value)
		case "block":
			c.BlockSize = tr.number(value)
		case "blocks":
			c.Blocks = tr.number(value)
		case "long":
			c.LongPrefillTokens = tr.number(value)
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
	tr.config, tr.s, tr.worker, tr.outputs = c, s, newWorker(c), map[uint64]int{}
	return ""
}

func (tr *transcript) add(args []string) {
	p := &sample.Params{MaxTokens: 100, EOS: -1, Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs}
	q := Request{Key: uint64(tr.number(args[0])), Params: p}
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
		case "prio":
			q.Priority = tr.number(value)
		default:
			tr.Fatalf("add: unknown %q", a)
		}
	}
	tr.s.Add(q)
}

func (tr *transcript) step() string {
	if !tr.s.Schedule(&tr.plan) {
		tr.result = nil
		return "idle\n"
	}
	var err error
	if tr.result, err = tr.worker.execute(tr.config, &tr.plan, 1000); err != nil {
		tr.Fatalf("%v\n%s", err, tr.print())
	}
	return tr.print()
}

func (tr *transcript) print() string {
	p := &tr.plan
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
	at := uint32(0)
	for i, id := range p.Slot {
		f := tr.s.flight.entries[i]
		fmt.Fprintf(&b, "  %d in slot %d: compute %d from %d", f.request.key, id, p.Count[i], p.Start[i])
		if p.Last[i] >= 0 {
			fmt.Fprintf(&b, ", last %d", p.Last[i])
		}
		if n := p.NewBlocks[i]; n > 0 {
			fmt.Fprintf(&b, ", blocks +%v", p.Blocks[at:at+n])
			at += n
		}
		if f.samples {
			b.WriteString(", sample")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (tr *transcript) sample(args []string) string {
	if tr.result == nil {
		return ""
	}
	given := map[uint64]int32{}
	for _, a := range args {
		key, token, _ := strings.Cut(a, "=")
		given[uint64(tr.number(key))] = int32(tr.number(token))
	}
	i := 0
	for _, f := range tr.s.flight.entries {
		if !f.samples {
			continue
		}
		key := f.request.key
		tr.outputs[key]++
		token, ok := given[key]
		if !ok {
			token = int32(100*int(key) + tr.outputs[key])
		}
		tr.result.Token[i] = token
		i++
	}
	if err := tr.s.Check(tr.result); err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, o := range tr.s.Update(tr.result, nil) {
		fmt.Fprintf(&b, "  -> %d:", o.Key)
		if o.Token != NoToken {
			fmt.Fprintf(&b, " token %d", o.Token)
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
		b.WriteByte('\n')
	}
	tr.result = nil
	if err := tr.s.check(); err != nil {
		tr.Fatal(err)
	}
	return b.String()
}
