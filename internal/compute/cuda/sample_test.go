package cuda_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// asked is a row of logits and what is asked of it.
type asked struct {
	logits []float32
	row    sample.Row
}

// onHost is what package sample makes of a row, as the host's path of a runner does.
func onHost(a asked) sample.Row {
	var s sample.Sampler
	row, logits := a.row, slices.Clone(a.logits)
	p := row.Params
	if row.Given >= 0 {
		row.Token = row.Given
		row.Sampled, row.Top = s.Logprobs(logits, row.Given, row.Logprobs, p.AsLogits, nil)
		return row
	}
	if row.Token = sample.Unsound; !sample.Sound(logits) {
		return row
	}
	if row.Mask != nil {
		sample.Restrict(logits, row.Mask)
	}
	row.Token = s.Sample(logits, p, row.State, row.Position)
	if row.Logprobs != sample.NoLogprobs {
		row.Sampled, row.Top = s.Logprobs(slices.Clone(a.logits), row.Token, row.Logprobs,
			p.AsLogits, nil)
	}
	return row
}

// onDevice is what a device makes of rows in one step.
func onDevice(t *testing.T, d *cuda.Device, list []asked) []sample.Row {
	t.Helper()
	vocab := len(list[0].logits)
	x := new(compute.Tensor)
	d.Resize(x, len(list), vocab)
	rows := make([]sample.Row, len(list))
	for i, a := range list {
		// They need not be in the order of the logits.
		at := (i*5 + 3) % len(list)
		if len(list)%5 == 0 {
			at = len(list) - 1 - i
		}
		copy(x.Row(at), a.logits)
		rows[i] = a.row
		rows[i].Index = at
		if !d.Samples(&rows[i], vocab) {
			t.Fatalf("row %d: not for the device: %+v", i, rows[i].Params)
		}
	}
	x.Memory.Filled()
	if err := d.Sample(x, rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// sameRow compares all but log-probabilities by bits, and those with what float64 sums in another
// order may change.
func sameRow(t *testing.T, got, want sample.Row) bool {
	t.Helper()
	near := func(a, b float32) bool {
		return a == b || math.Abs(float64(a-b)) <= 1e-6*math.Max(1, math.Abs(float64(b)))
	}
	if got.Token != want.Token || len(got.Top) != len(want.Top) {
		return false
	}
	for i, c := range append([]sample.Choice{got.Sampled}, got.Top...) {
		w := append([]sample.Choice{want.Sampled}, want.Top...)[i]
		if c.Token != w.Token || c.Rank != w.Rank || !near(c.Logprob, w.Logprob) {
			return false
		}
	}
	return true
}

// plain is greedy sampling of nothing else.
func plain() sample.Params {
	return sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, MaxTokens: 50, EOS: -1}
}

// randomLogits are of many kinds: smooth, with ties, with tokens that are impossible, all equal, or
// no numbers.
func randomLogits(r *rand.Rand, vocab int) []float32 {
	x := make([]float32, vocab)
	spread := []float64{0.1, 1, 4, 12}[r.IntN(4)]
	shift := []float64{0, 0, 20, -20}[r.IntN(4)]
	for i := range x {
		x[i] = float32(r.NormFloat64()*spread + shift)
	}
	round := func(by float64) {
		for i, v := range x {
			x[i] = float32(math.Round(float64(v)*by) / by)
		}
	}
	some := func(v float32, n int) {
		for range n {
			x[r.IntN(vocab)] = v
		}
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	switch r.IntN(12) {
	case 0, 1:
		round(1)
	case 2:
		round(8)
	case 3:
		clear(x)
		some(float32(math.Copysign(0, -1)), vocab/2)
	case 4:
		some(-inf, vocab/2)
	case 5:
		some(-inf, 1+r.IntN(3))
	case 6:
		some(nan, 1+r.IntN(2))
	case 7:
		some(inf, 1+r.IntN(2))
	case 8:
		for i := range x {
			x[i] = -inf
		}
		some(1, r.IntN(3))
	}
	return x
}

// randomIDs are n ids, some of them outside of the vocabulary.
func randomIDs(r *rand.Rand, vocab, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(vocab+2) - 1)
	}
	return ids
}

// randomParams has each parameter on with a probability.
func randomParams(r *rand.Rand, vocab int, often float64) sample.Params {
	p := plain()
	on := func() bool { return r.Float64() < often }
	rarely := func() bool { return r.Float64() < often*often }
	if r.Float64() < 2*often {
		p.Temperature = []float32{0.1, 0.7, 1, 1.3, 5}[r.IntN(5)]
	}
	if on() {
		p.TopP = []float32{1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999999, 1 - 1.0/(1<<24)}[r.IntN(7)]
	}
	if on() {
		p.TopK = int32(1 + r.IntN([]int{3, 50, vocab + 3}[r.IntN(3)]))
	}
	if on() {
		p.MinP = []float32{1e-30, 0.01, 0.2, 1}[r.IntN(4)]
	}
	if on() {
		p.RepetitionPenalty = []float32{0.5, 1.1, 2}[r.IntN(3)]
	}
	if on() {
		p.PresencePenalty = float32(r.Float64()*4 - 2)
	}
	if on() {
		p.FrequencyPenalty = float32(r.Float64()*4 - 2)
	}
	if on() {
		p.MinTokens, p.EOS = 5, int32(r.IntN(vocab))
		p.StopTokens = append(randomIDs(r, vocab, r.IntN(3)), p.EOS)
	}
	if on() {
		for _, id := range randomIDs(r, vocab, 1+r.IntN(6)) {
			b := sample.Bias{ID: id, Value: float32(r.NormFloat64() * 10)}
			if r.IntN(20) == 0 {
				b.Value = float32(math.Inf(1 - 2*r.IntN(2)))
			}
			p.LogitBias = append(p.LogitBias, b)
		}
		p.LogitBias = append(p.LogitBias, sample.Bias{ID: p.LogitBias[0].ID, Value: 0.3})
	}
	if rarely() {
		p.AllowedTokens = randomIDs(r, vocab, 1+r.IntN(8))
	}
	if on() {
		for range 1 + r.IntN(5) {
			p.BadWords = append(p.BadWords, randomIDs(r, min(vocab, 20), 1+r.IntN(2)))
		}
	}
	if rarely() {
		p.ThinkingEnd, p.ThinkingBudget = []int32{int32(r.IntN(vocab))}, int32(r.IntN(8))
	}
	if on() {
		p.Logprobs = int32(r.IntN(21))
		p.AsLogits = r.IntN(4) == 0
	}
	p.Seed = r.Uint64()
	return p
}

// randomRow is a row of which all is chosen at random.
func randomRow(r *rand.Rand, vocab int, often float64) asked {
	p := randomParams(r, vocab, often)
	a := asked{logits: randomLogits(r, vocab), row: sample.Row{Params: &p, Given: -1,
		Position: uint32(r.IntN(1000)), Logprobs: p.Logprobs}}
	if r.Float64() < often/4 {
		p.PromptLogprobs = int32(r.IntN(21))
		a.row.Given, a.row.Logprobs = int32(r.IntN(vocab)), p.PromptLogprobs
		return a
	}
	inside := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(r.IntN(min(vocab, 20)))
		}
		return ids
	}
	a.row.State = sample.NewState(&p, inside(r.IntN(9)), inside(r.IntN(9)))
	if r.Float64() < often/2 {
		a.row.Mask = make([]uint32, max(1, (vocab+31)/32-r.IntN(2)))
		for i := range a.row.Mask {
			a.row.Mask[i] = r.Uint32() & r.Uint32()
		}
	}
	return a
}

// checkRows holds rows in one step to the host's.
func checkRows(t *testing.T, d *cuda.Device, list []asked) {
	t.Helper()
	for i, got := range onDevice(t, d, list) {
		want := onHost(list[i])
		if !sameRow(t, got, want) {
			t.Fatalf("row %d of %d: token %d %+v, top %v; want %d %+v, top %v; params %+v, mask %x",
				i, len(list), got.Token, got.Sampled, got.Top, want.Token, want.Sampled, want.Top,
				*got.Params, got.Mask)
		}
	}
}

// TestSample holds tokens and log-probabilities to those of package sample: of each parameter
// alone, and of many at once, in steps of any size, with schedules of all kinds.
func TestSample(t *testing.T) {
	for seed := range uint64(3) {
		if seed > 1 && testing.Short() {
			break
		}
		d := machine(t, machines[seed])
		r := rand.New(rand.NewPCG(7, seed))
		for _, vocab := range []int{7, 1000} {
			for step := range 8 {
				var list []asked
				for range 1 + r.IntN(9) {
					list = append(list, randomRow(r, vocab, float64(1+step%4)/5))
				}
				checkRows(t, d, list)
			}
		}
	}
}

// TestSampleAlone gives each parameter alone to many rows.
func TestSampleAlone(t *testing.T) {
	d := machine(t, &double.Driver{})
	base := reflect.ValueOf(plain())
	for field := range base.NumField() {
		var list []asked
		r := rand.New(rand.NewPCG(3, uint64(field)))
		for range 8 {
			a := randomRow(r, 1300, 1)
			p := plain()
			reflect.ValueOf(&p).Elem().Field(field).Set(reflect.ValueOf(*a.row.Params).Field(field))
			p.Temperature, p.EOS = a.row.Params.Temperature, a.row.Params.EOS
			if p.ThinkingBudget > 0 {
				p.ThinkingEnd = a.row.Params.ThinkingEnd
			}
			a.row.Params, a.row.Given, a.row.Logprobs = &p, -1, p.Logprobs
			a.row.State = sample.NewState(&p, []int32{1, 2, 5}, []int32{2, 2, 3})
			list = append(list, a)
		}
		checkRows(t, d, list)
	}
}
