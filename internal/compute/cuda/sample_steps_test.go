package cuda_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// TestSampleLarge has rows of a vocabulary of today's size: of which a few hundred tokens are
// likely, or thousands, or all.
func TestSampleLarge(t *testing.T) {
	const vocab = 151_936
	cost := map[string]uint64{}
	d := machine(t, &double.Driver{Threads: 2, Observe: func(kernel string, s ptx.Stats) {
		cost[kernel] += s.Instructions
	}})
	r := rand.New(rand.NewPCG(5, 5))
	peaked, flat := make([]float32, vocab), make([]float32, vocab)
	sure := make([]float32, vocab)
	for i := range peaked {
		peaked[i] = float32(r.NormFloat64() * 2.5)
		sure[i] = peaked[i]
		flat[i] = float32(r.NormFloat64() * 0.01)
	}
	for range 300 {
		sure[r.IntN(vocab)] = float32(12 + 2*r.ExpFloat64())
	}
	warm := func(change func(*sample.Params)) sample.Params {
		p := plain()
		p.Temperature, p.Seed = 1, 11
		change(&p)
		return p
	}
	cases := []struct {
		name   string
		logits []float32
		params sample.Params
		long   bool
	}{
		{"greedy", peaked, plain(), false},
		{"temperature", peaked, warm(func(*sample.Params) {}), true},
		{"top-p", peaked, warm(func(p *sample.Params) { p.TopP = 0.9 }), false},
		{"top-p of few", sure, warm(func(p *sample.Params) { p.TopP = 0.9 }), false},
		{"top-k and top-p", peaked, warm(func(p *sample.Params) { p.TopK, p.TopP = 50, 0.9 }),
			false},
		{"top-k of many", peaked, warm(func(p *sample.Params) { p.TopK = 5000 }), true},
		{"min-p", peaked, warm(func(p *sample.Params) { p.MinP = 0.05 }), true},
		{"flat", flat, warm(func(p *sample.Params) { p.TopP = 0.95 }), true},
		{"penalties", peaked, warm(func(p *sample.Params) { p.RepetitionPenalty = 1.2 }), true},
		{"log-probabilities", peaked, warm(func(p *sample.Params) { p.Logprobs = 20 }), false},
	}
	for _, c := range cases {
		if testing.Short() && c.long {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			clear(cost)
			var seen []int32
			for i := range int32(2000) {
				seen = append(seen, i*71)
			}
			checkRows(t, d, []asked{{logits: c.logits, row: sample.Row{Params: &c.params,
				State: sample.NewState(&c.params, seen, seen[:100]), Given: -1, Position: 9,
				Logprobs: c.params.Logprobs}}})
			t.Logf("warp instructions: %v", cost)
		})
	}
}

// TestSampleInAnyBatch wants the bits of a row whatever is beside it.
func TestSampleInAnyBatch(t *testing.T) {
	d := machine(t, &double.Driver{})
	r := rand.New(rand.NewPCG(2, 3))
	var list []asked
	for range 12 {
		list = append(list, randomRow(r, 1100, 0.5))
	}
	together := onDevice(t, d, list)
	for range 6 {
		var some []asked
		var want []sample.Row
		for _, i := range r.Perm(len(list))[:1+r.IntN(4)] {
			some, want = append(some, list[i]), append(want, together[i])
		}
		for i, got := range onDevice(t, d, some) {
			if got.Token != want[i].Token || got.Sampled != want[i].Sampled ||
				!slices.Equal(got.Top, want[i].Top) {
				t.Fatalf("%+v alone or beside others: %+v", got, want[i])
			}
		}
	}
}

// TestSamples has the device refuse what it does not do.
func TestSamples(t *testing.T) {
	d := machine(t, &double.Driver{})
	for name, c := range map[string]struct {
		change func(p *sample.Params)
		want   bool
	}{
		"greedy":             {func(*sample.Params) {}, true},
		"20 logprobs":        {func(p *sample.Params) { p.Logprobs = 20 }, true},
		"21":                 {func(p *sample.Params) { p.Logprobs = 21 }, false},
		"all":                {func(p *sample.Params) { p.Logprobs = sample.AllLogprobs }, false},
		"as logits":          {func(p *sample.Params) { p.Logprobs, p.AsLogits = 0, true }, true},
		"processed":          {func(p *sample.Params) { p.Logprobs, p.Processed = 0, true }, false},
		"processed, but not": {func(p *sample.Params) { p.Processed = true }, true},
		"by name": {func(p *sample.Params) { p.Logprobs, p.LogprobTokens = 0, []int32{3} },
			false},
	} {
		p := plain()
		c.change(&p)
		row := sample.Row{Params: &p, Given: -1, Logprobs: p.Logprobs}
		if got := d.Samples(&row, 1000); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if d.Samples(&row, 1<<20+1) {
			t.Errorf("%s: of a vocabulary of 2^20+1", name)
		}
	}
}

// idle is a driver that does nothing, and counts.
type idle struct {
	driver.Driver
	context *idleContext
}

func (d *idle) Open(ordinal int) (driver.Context, error) {
	c, err := d.Driver.Open(ordinal)
	d.context = &idleContext{Context: c}
	return d.context, err
}

type idleContext struct {
	driver.Context
	launches, uploads, downloads, sent, received int
}

func (c *idleContext) Launch(*driver.Launch, driver.Stream) error {
	c.launches++
	return nil
}

func (c *idleContext) Upload(_ driver.Ptr, src []byte, _ driver.Stream) error {
	c.uploads++
	c.sent += len(src)
	return nil
}

func (c *idleContext) Download(dst []byte, _ driver.Ptr, _ driver.Stream) error {
	c.downloads++
	c.received += len(dst)
	return nil
}

func (c *idleContext) Synchronize(driver.Stream) error { return nil }

// TestSampleAllocatesNothing wants steady steps of all kinds to leave the heap alone, and each to
// copy once to the device and once from it.
func TestSampleAllocatesNothing(t *testing.T) {
	drv := &idle{Driver: &double.Driver{}}
	d, err := cuda.New(cuda.Options{Driver: drv, DType: compute.BFloat16, Threads: 1,
		PTX: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const vocab = 151_936
	full := func(p *sample.Params) {
		p.Temperature, p.TopK, p.TopP, p.MinP, p.FrequencyPenalty = 1, 40, 0.9, 0.01, 0.5
		p.LogitBias = []sample.Bias{{ID: 5, Value: 1}, {ID: 2, Value: 1}}
		p.MinTokens, p.StopTokens, p.Withheld = 100, []int32{7}, []int32{3}
		p.BadWords = [][]int32{{1}, {2, 3}}
	}
	for _, c := range []struct {
		name           string
		rows, launches int
		change         func(p *sample.Params)
	}{
		{"greedy", 1, 2, func(*sample.Params) {}},
		{"greedy", 32, 2, func(*sample.Params) {}},
		{"temperature", 32, 3, func(p *sample.Params) { p.Temperature = 1 }},
		{"top-k and top-p", 32, 3, func(p *sample.Params) {
			p.Temperature, p.TopK, p.TopP = 1, 40, 0.9
		}},
		{"all", 32, 4, full},
		{"log-probabilities", 32, 4, func(p *sample.Params) { p.Logprobs = 5 }},
		{"all and log-probabilities", 32, 6, func(p *sample.Params) {
			full(p)
			p.Logprobs = 20
		}},
		{"masks", 8, 2, func(p *sample.Params) { p.AllowedTokens = []int32{4, 5} }},
	} {
		x := new(compute.Tensor)
		d.Resize(x, c.rows, vocab)
		p := plain()
		c.change(&p)
		prompt := make([]int32, 500)
		for i := range prompt {
			prompt[i] = int32(i)
		}
		rows := make([]sample.Row, c.rows)
		for i := range rows {
			rows[i] = sample.Row{Index: i, Params: &p, State: sample.NewState(&p, prompt, prompt),
				Given: -1, Logprobs: p.Logprobs}
		}
		step := func() {
			for i := range rows {
				rows[i].Top = rows[i].Top[:0]
			}
			if err := d.Sample(x, rows); err != nil {
				t.Fatal(err)
			}
		}
		step()
		before := *drv.context
		step()
		got := *drv.context
		if n := got.launches - before.launches; n != c.launches {
			t.Errorf("%s: %d launches, want %d", c.name, n, c.launches)
		}
		if got.uploads-before.uploads != 1 || got.downloads-before.downloads != 1 {
			t.Errorf("%s: %d copies to the device, %d back", c.name,
				got.uploads-before.uploads, got.downloads-before.downloads)
		}
		if n := testing.AllocsPerRun(20, step); n != 0 {
			t.Errorf("%s: %v allocations a step", c.name, n)
		}
		t.Logf("%s, %d rows: %d launches, %d bytes to the device, %d back", c.name, c.rows,
			got.launches-before.launches, got.sent-before.sent, got.received-before.received)
	}
}

// TestWeightsAlike draws many times from the same logits, all of them or a nucleus: equal logits
// give equal tokens.
func TestWeightsAlike(t *testing.T) {
	d := machine(t, &double.Driver{})
	r := rand.New(rand.NewPCG(8, 8))
	var list []asked
	logits := make([]float32, 1500)
	for i := range logits {
		logits[i] = float32(r.NormFloat64())
	}
	p := plain()
	p.Temperature = 0.9
	for i := range 200 {
		q := p
		q.Seed = uint64(i)
		if i%2 == 1 {
			q.TopP = float32(0.5 + 0.5*math.Sqrt(r.Float64())*0.99)
		}
		list = append(list, asked{logits: logits, row: sample.Row{Params: &q, Given: -1,
			Position: uint32(i), Logprobs: sample.NoLogprobs}})
	}
	checkRows(t, d, list)
	distinct := map[int32]bool{}
	for _, a := range list {
		distinct[onHost(a).Token] = true
	}
	if len(distinct) < 50 {
		t.Errorf("only %d tokens were drawn", len(distinct))
	}
}
