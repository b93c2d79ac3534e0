package step

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// maker makes random records. Empty lists are nil, as a fresh decoder leaves them.
type maker struct{ *rand.Rand }

func newMaker(seed uint64) maker { return maker{rand.New(rand.NewPCG(seed, 7))} }

func some[T any](m maker, most int, f func() T) []T {
	var v []T
	for range m.IntN(most + 1) {
		v = append(v, f())
	}
	return v
}

func (m maker) f32() float32 { return float32(m.NormFloat64()) }
func (m maker) i32() int32   { return int32(m.Uint32()) }

func (m maker) params() sample.Params {
	return sample.Params{
		Temperature: m.f32(), TopP: m.f32(), TopK: m.i32(), MinP: m.f32(),
		RepetitionPenalty: m.f32(),
		PresencePenalty:   m.f32(), FrequencyPenalty: m.f32(), Seed: m.Uint64(), Logprobs: m.i32(),
		PromptLogprobs: m.i32(), Processed: m.IntN(2) == 0, AsLogits: m.IntN(2) == 0,
		MaxTokens: m.i32(), MinTokens: m.i32(), EOS: m.i32(),
		IgnoreEOS:  m.IntN(2) == 0,
		StopTokens: some(m, 3, m.i32),
		Withheld:   some(m, 3, m.i32),
		LogitBias: some(m, 3, func() sample.Bias {
			return sample.Bias{ID: m.i32(),
				Value: m.f32()}
		}),
		LogprobTokens:  some(m, 3, m.i32),
		AllowedTokens:  some(m, 3, m.i32),
		BadWords:       some(m, 3, func() []int32 { return some(m, 3, m.i32) }),
		ThinkingBudget: m.i32(), ThinkingStart: some(m, 3, m.i32), ThinkingEnd: some(m, 3, m.i32),
	}
}

func (m maker) plan() *Plan {
	p := &Plan{ID: m.Uint64(), Free: some(m, 4, m.Uint32)}
	p.New = some(m, 4, func() NewRequest {
		q := NewRequest{
			Slot: m.Uint32(), Tokens: some(m, 40, m.i32), Blocks: some(m, 5, m.Uint32),
			Params: m.params(),
		}
		q.PromptLen = uint32(m.IntN(len(q.Tokens) + 1))
		q.Constraint = constrain.Spec{Kind: constrain.Kind(m.IntN(constrain.Kinds)),
			Text: strings.Repeat("ab", m.IntN(3)), Compact: m.IntN(2) == 0,
			Closed: m.IntN(2) == 0, AnyOrder: m.IntN(2) == 0}
		q.Pooling, q.Second = Pooling(m.IntN(int(poolings))), uint32(m.IntN(9))
		q.Adapter = uint32(m.IntN(5))
		return q
	})
	for range m.IntN(20) {
		blocks := some(m, 3, m.Uint32)
		row := Row{
			Slot: m.Uint32(), Start: m.Uint32(), Count: m.Uint32(), Blocks: uint16(len(blocks)),
			Last:   m.i32(),
			Source: Source(m.IntN(3)), Sample: m.IntN(2) == 0,
		}
		if row.Source != FromRequest {
			drafts := some(m, 3, m.i32)
			row.Count = uint32(1 + len(drafts))
			p.Drafts = append(p.Drafts, drafts...)
		}
		p.Rows = append(p.Rows, row)
		p.Blocks = append(p.Blocks, blocks...)
	}
	snapshot := func() Snapshot { return Snapshot{Slot: m.Uint32(), State: m.Uint32()} }
	p.Restore, p.Save = some(m, 3, snapshot), some(m, 3, snapshot)
	p.Guess = some(m, 3, func() Guess { return Guess{Slot: m.Uint32(), Tokens: m.Uint32()} })
	return p
}

func (m maker) logprobs() Logprobs {
	one := func() TokenLogprob {
		return TokenLogprob{Token: m.i32(), Rank: m.i32(),
			Logprob: m.f32()}
	}
	return Logprobs{Slot: m.Uint32(), Sampled: one(), Top: some(m, 5, one)}
}

func (m maker) result() *Result {
	r := &Result{Plan: m.Uint64()}
	for range m.IntN(20) {
		r.Append(m.Uint32(), append(some(m, 2, m.i32), m.i32())...)
	}
	r.Logprobs = some(m, 4, m.logprobs)
	r.PromptLogprobs = some(m, 3, func() PromptLogprobs {
		return PromptLogprobs{Slot: m.Uint32(), Start: m.Uint32(), Entries: some(m, 4, m.logprobs)}
	})
	drafts := func() Drafts { return Drafts{Slot: m.Uint32(), Tokens: some(m, 4, m.i32)} }
	r.Forced, r.Guessed = some(m, 2, drafts), some(m, 2, drafts)
	r.Pooled = some(m, 2, func() Pooled {
		return Pooled{Slot: m.Uint32(), Vector: some(m, 9,
			m.f32)}
	})
	return r
}

// TestRoundTrip decodes random records into a fresh and into a used record, and destroys the input
// afterwards: nothing decoded may alias it.
func TestRoundTrip(t *testing.T) {
	var usedPlan Plan
	var usedResult Result
	for seed := range uint64(2000) {
		m := newMaker(seed)
		plan, result := m.plan(), m.result()

		var fresh Plan
		b := AppendPlan(nil, plan)
		want := bytes.Clone(b)
		if err := DecodePlan(b, &fresh); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := DecodePlan(b, &usedPlan); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		scribble(b)
		if !reflect.DeepEqual(plan, &fresh) {
			t.Fatalf("seed %d: plan\n%+v\nbecame\n%+v", seed, plan, &fresh)
		}
		if !bytes.Equal(want, AppendPlan(nil, &usedPlan)) {
			t.Fatalf("seed %d: plan\n%+v\nbecame in used memory\n%+v", seed, plan, &usedPlan)
		}

		var freshResult Result
		b = AppendResult([]byte("before"), result)[len("before"):]
		want = bytes.Clone(b)
		if err := DecodeResult(b, &freshResult); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := DecodeResult(b, &usedResult); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		scribble(b)
		if !reflect.DeepEqual(result, &freshResult) {
			t.Fatalf("seed %d: result\n%+v\nbecame\n%+v", seed, result, &freshResult)
		}
		if !bytes.Equal(want, AppendResult(nil, &usedResult)) {
			t.Fatalf("seed %d: result\n%+v\nbecame in used memory\n%+v", seed, result, &usedResult)
		}
	}
}

func scribble(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

// TestLayout pins the bytes, so that the version is changed when they are.
func TestLayout(t *testing.T) {
	got := AppendPlan(nil, &Plan{
		ID: 0x0102030405060708, Free: []uint32{9}, Rows: []Row{
			{Slot: 1, Start: 2, Count: 3, Blocks: 1, Last: -1, Source: FromPlan, Sample: true},
			{Slot: 4, Start: 5, Count: 1, Source: FromSampler},
		}, Blocks: []uint32{0x0a0b0c0d}, Drafts: []int32{8, -2}, Restore: []Snapshot{{4, 17}},
		Save: []Snapshot{{1, 18}}, Guess: []Guess{{4, 5}},
	})
	want := []byte{
		12, 'P', 8, 7, 6, 5, 4, 3, 2, 1,
		1, 0, 0, 0, 9, 0, 0, 0,
		0, 0, 0, 0,
		2, 0, 0, 0,
		1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 255, 255, 255, 255, 1, 0, 1, 1,
		4, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0,
		1, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a,
		2, 0, 0, 0, 8, 0, 0, 0, 254, 255, 255, 255,
		1, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0,
		1, 0, 0, 0, 4, 0, 0, 0, 17, 0, 0, 0,
		1, 0, 0, 0, 1, 0, 0, 0, 18, 0, 0, 0,
	}
	if !bytes.Equal(got, want) {
		t.Errorf("plan\n%v, want\n%v", got, want)
	}
	got = AppendResult(nil, &Result{
		Plan: 5, Slot: []uint32{1, 3}, End: []uint32{1, 3}, Token: []int32{7, 8, 9},
		Logprobs: []Logprobs{{Slot: 1, Sampled: TokenLogprob{7, 2, -1}, Top: []TokenLogprob{{8, 1,
			-0.5}}}}, Forced: []Drafts{{3, []int32{6}}},
		Guessed: []Drafts{{1, []int32{2}}},
	})
	want = []byte{
		12, 'R', 5, 0, 0, 0, 0, 0, 0, 0,
		2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0,
		3, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0,
		2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0,
		1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x80, 0xbf,
		1, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xbf,
		0, 0, 0, 0,
		0, 0, 0, 0,
		1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0,
		1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
	}
	if !bytes.Equal(got, want) {
		t.Errorf("result\n%v, want\n%v", got, want)
	}
}

func TestFloatBits(t *testing.T) {
	for _, bits := range []uint32{0x7fc00001, 0xffc12345, 0x80000000, 0x7f800000, 1} {
		v := math.Float32frombits(bits)
		b := AppendResult(nil, &Result{Logprobs: []Logprobs{{
			Sampled: TokenLogprob{Logprob: v}, Top: []TokenLogprob{{Logprob: v}},
		}}})
		var r Result
		if err := DecodeResult(b, &r); err != nil {
			t.Fatal(err)
		}
		for _, got := range []float32{r.Logprobs[0].Sampled.Logprob, r.Logprobs[0].Top[0].Logprob} {
			if math.Float32bits(got) != bits {
				t.Errorf("bits %x became %x", bits, math.Float32bits(got))
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	valid := newMaker(3).plan()
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"nothing", nil, "too few"},
		{"other version", append([]byte{1}, AppendPlan(nil, valid)[1:]...), "version 1"},
		{"a result", AppendResult(nil, &Result{}), `kind 'R'`},
		{"trailing byte", append(AppendPlan(nil, valid), 0), "1 bytes after the end"},
		{"unknown source", AppendPlan(nil, &Plan{Rows: []Row{{Source: 3}}}),
			"the source or the flag of a row is none"},
		{"sample twice", badRow(3, 2), "the source or the flag of a row is none"},
		{"filled", badRow(2, 5), "the source or the flag of a row is none"},
		{"blocks not announced", AppendPlan(nil, &Plan{Blocks: []uint32{1}}),
			"0 new blocks announced, 1 listed"},
		{"prompt beyond tokens", AppendPlan(nil, &Plan{New: []NewRequest{{PromptLen: 1}}}),
			"prompt of 1 tokens, 0 listed"},
		{"huge list", append([]byte{Version, 'P', 0, 0, 0, 0, 0, 0, 0, 0}, 255, 255, 255, 255),
			"Free: 4294967295 elements need 17179869180 bytes, 0 left"},
		{"boolean 2", badBool(), "2 is no boolean"},
		{"constraint of no kind", AppendPlan(nil, &Plan{New: []NewRequest{
			{Constraint: constrain.Spec{Kind: constrain.Kinds}}}}), "kind 7 is none"},
	} {
		var p Plan
		err := DecodePlan(c.bytes, &p)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(),
			"step: plan") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for _, c := range []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"a plan", AppendPlan(nil, &Plan{}), `kind 'P'`},
		{"fewer runs", AppendResult(nil, &Result{Slot: []uint32{1}}), "1 slots with 0 runs"},
		{"fewer tokens", AppendResult(nil, &Result{Slot: []uint32{1}, End: []uint32{1}}),
			"runs of 1 tokens, 0 listed"},
		{"tokens of none", AppendResult(nil, &Result{Token: []int32{1}}),
			"runs of 0 tokens, 1 listed"},
		{"no tokens", AppendResult(nil, &Result{Slot: []uint32{1, 6}, End: []uint32{1, 1},
			Token: []int32{1}}), "the tokens of slot 6 end at 1, those before at 1"},
		{"backwards", AppendResult(nil, &Result{Slot: []uint32{1, 6}, End: []uint32{2, 1},
			Token: []int32{1}}), "the tokens of slot 6 end at 1, those before at 2"},
		{"trailing bytes", append(AppendResult(nil, &Result{}), 0, 0), "2 bytes after the end"},
	} {
		var r Result
		err := DecodeResult(c.bytes, &r)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(),
			"step: result") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestRuns takes results apart again.
func TestRuns(t *testing.T) {
	var r Result
	r.Append(9, 1)
	r.Reset(3)
	r.Append(4, 10, 11)
	r.Append(2, 13)
	r.Append(7, 12)
	b := AppendResult(nil, &r)
	if plan, err := ResultPlan(b); plan != 3 || err != nil {
		t.Errorf("the result of plan 3 says %d, %v", plan, err)
	}
	if err := DecodeResult(b, &r); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int32{{10, 11}, {13}, {12}} {
		if got := r.Run(i); !slices.Equal(got, want) {
			t.Errorf("run %d is %v, want %v", i, got, want)
		}
	}
	if !slices.Equal(r.Slot, []uint32{4, 2, 7}) {
		t.Errorf("slots %v", r.Slot)
	}
	if _, err := ResultPlan(b[:9]); err == nil || !strings.HasPrefix(err.Error(),
		"step: result: Plan: 7 bytes left") {
		t.Errorf("a result cut short: %v", err)
	}
	if _, err := ResultPlan(AppendPlan(nil, &Plan{})); err == nil {
		t.Error("a plan was taken for a result")
	}
}

// TestPlanTokens counts the tokens of all rows.
func TestPlanTokens(t *testing.T) {
	p := Plan{Rows: []Row{
		{Count: 5}, {Count: 1, Source: FromPlan}, {Count: 2, Sample: true}, {Count: 1,
			Source: FromSampler},
	}}
	if n := p.Tokens(); n != 9 {
		t.Errorf("%d tokens, want 9", n)
	}
}

// badRow is a plan of two rows, the last word of the second with byte i changed to v.
func badRow(i int, v byte) []byte {
	b := AppendPlan(nil, &Plan{Rows: []Row{{}, {Source: FromPlan, Sample: true}}})
	b[len(b)-24+i] = v // before the lengths of Blocks, Drafts, Guess, Restore and Save
	return b
}

func badBool() []byte {
	b := AppendPlan(nil, &Plan{New: []NewRequest{{Params: sample.Params{IgnoreEOS: true}}}})
	b[bytes.IndexByte(b[10+8:], 1)+10+8] = 2 // after the header, Free, and New's length
	return b
}

// TestEveryPrefixRefused cuts records short at every byte.
func TestEveryPrefixRefused(t *testing.T) {
	for seed := range uint64(20) {
		m := newMaker(seed)
		var p Plan
		var r Result
		b := AppendPlan(nil, m.plan())
		for i := range b {
			if DecodePlan(b[:i], &p) == nil {
				t.Fatalf("seed %d: %d of %d bytes of a plan were enough", seed, i, len(b))
			}
		}
		b = AppendResult(nil, m.result())
		for i := range b {
			if DecodeResult(b[:i], &r) == nil {
				t.Fatalf("seed %d: %d of %d bytes of a result were enough", seed, i, len(b))
			}
		}
	}
}

// TestHostileLengths puts large numbers wherever a length may stand and watches the memory that is
// asked for.
func TestHostileLengths(t *testing.T) {
	m := newMaker(11)
	plan, result := AppendPlan(nil, m.plan()), AppendResult(nil, m.result())
	var before, after runtime.MemStats
	for _, n := range []uint32{math.MaxUint32, 1 << 31, 1 << 28, 1 << 20} {
		for _, c := range []struct {
			valid  []byte
			decode func([]byte)
		}{
			{plan, func(b []byte) { var p Plan; _ = DecodePlan(b, &p) }},
			{result, func(b []byte) { var r Result; _ = DecodeResult(b, &r) }},
		} {
			b := bytes.Clone(c.valid)
			runtime.ReadMemStats(&before)
			for i := 2; i+4 <= len(b); i++ {
				copy(b, c.valid)
				binary.LittleEndian.PutUint32(b[i:], n)
				c.decode(b)
			}
			runtime.ReadMemStats(&after)
			// A block table entry of 4 bytes may announce a slice header of 24; the rest is error
			// text.
			if most := uint64(len(b)) * (8*uint64(len(b)) +
				2048); after.TotalAlloc-before.TotalAlloc > most {
				t.Errorf("length %d: %d bytes allocated, at most %d expected", n,
					after.TotalAlloc-before.TotalAlloc, most)
			}
		}
	}
}

func FuzzDecodePlan(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(AppendPlan(nil, newMaker(seed).plan()))
	}
	f.Add(AppendPlan(nil, &Plan{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Plan
		if DecodePlan(b, &p) != nil {
			return
		}
		if again := AppendPlan(nil, &p); !bytes.Equal(b, again) {
			t.Fatalf("accepted %x, writes %x", b, again)
		}
	})
}

func FuzzDecodeResult(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(AppendResult(nil, newMaker(seed).result()))
	}
	f.Add(AppendResult(nil, &Result{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Result
		if DecodeResult(b, &r) != nil {
			return
		}
		if again := AppendResult(nil, &r); !bytes.Equal(b, again) {
			t.Fatalf("accepted %x, writes %x", b, again)
		}
	})
}

// steady is a plan and a result of n requests that decode, each sixteenth with a new block.
func steady(n int) (*Plan, *Result) {
	p, r := &Plan{ID: 1000}, &Result{Plan: 1000}
	for i := range uint32(n) {
		row := Row{Slot: i, Start: 500 + i, Count: 1, Last: int32(i) * 7, Source: FromPlan,
			Sample: true}
		if i%16 == 0 {
			row.Blocks = 1
			p.Blocks = append(p.Blocks, 3000+i)
		}
		p.Rows = append(p.Rows, row)
		r.Append(i, int32(i)*5)
	}
	return p, r
}

// roundTrip is what one step costs the driver and one worker.
func roundTrip(b []byte, p, p2 *Plan, r, r2 *Result) ([]byte, error) {
	b = AppendPlan(b[:0], p)
	if err := DecodePlan(b, p2); err != nil {
		return b, err
	}
	b = AppendResult(b[:0], r)
	return b, DecodeResult(b, r2)
}

func TestSteadyStateAllocates(t *testing.T) {
	p, r := steady(256)
	var p2 Plan
	var r2 Result
	var b []byte
	var err error
	got := testing.AllocsPerRun(100, func() {
		if b, err = roundTrip(b, p, &p2, r, &r2); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Fatalf("%v allocations per round trip", got)
	}
}

// BenchmarkRoundTrip encodes and decodes the plan and the result of 256 decoding requests.
func BenchmarkRoundTrip(b *testing.B) {
	p, r := steady(256)
	var p2 Plan
	var r2 Result
	var buf []byte
	var err error
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = roundTrip(buf, p, &p2, r, &r2); err != nil {
			b.Fatal(err)
		}
	}
}
