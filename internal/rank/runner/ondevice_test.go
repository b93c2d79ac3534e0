package runner

import (
	"errors"
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
)

// sampler is a device that samples as the host does, but for what it is told to refuse.
type sampler struct {
	sample.Sampler
	refuses func(r *sample.Row) bool
	fail    error
	rows    int // sampled so far
	logits  []float32
}

func (s *sampler) Samples(r *sample.Row, n int) bool {
	return n == vocab && (s.refuses == nil || !s.refuses(r))
}

func (s *sampler) Sample(x *compute.Tensor, rows []sample.Row) error {
	for i := range rows {
		r := &rows[i]
		s.rows++
		s.logits = append(s.logits[:0], x.Row(r.Index)...)
		logits := s.logits
		if r.Given >= 0 {
			r.Token = r.Given
		} else {
			if r.Mask != nil {
				sample.Restrict(logits, r.Mask)
			}
			r.Token = s.Sampler.Sample(logits, r.Params, r.State, r.Position)
		}
		if r.Logprobs != sample.NoLogprobs {
			r.Sampled, r.Top = s.Logprobs(x.Row(r.Index), r.Token, r.Logprobs, false, r.Top)
		}
	}
	return s.fail
}

// TestOnDevice runs one plan of all kinds of requests on the host and on a device: what they answer
// is the same, whether the device does all or the whole piece is left to the host.
func TestOnDevice(t *testing.T) {
	kinds := []struct {
		params     func(p *sample.Params)
		constraint constrain.Spec
		pooling    step.Pooling
	}{
		{params: func(p *sample.Params) { p.Temperature, p.Seed, p.Logprobs = 2, 5, 3 }},
		{params: func(p *sample.Params) { p.Logprobs, p.PromptLogprobs = 1, 2 }},
		{params: func(p *sample.Params) { p.Logprobs = 2 },
			constraint: constrain.Spec{Kind: constrain.Regex, Text: "[bcd]+"}},
		// The constraint and the parameters leave nothing.
		{params: func(p *sample.Params) { p.AllowedTokens, p.Logprobs = []int32{0}, 1 },
			constraint: constrain.Spec{Kind: constrain.Regex, Text: "b+"}},
	}
	pools := kinds[0]
	pools.params = func(p *sample.Params) { p.AllowedTokens = []int32{4, 9} }
	pools.pooling = step.PoolLogits
	run := func(s *sampler, pooling bool) *step.Result {
		r, o := newRunner(t, true)
		r.opt.Grammars = grammars.New(func() (*constrain.Vocabulary, error) {
			letters := make([][]byte, vocab)
			for i := range letters {
				letters[i] = []byte{byte('a' + i%26)}
			}
			return constrain.NewVocabulary(letters, nil), nil
		}, 1)
		defer r.opt.Grammars.Close()
		if s != nil {
			r.opt.Sampler = s
		}
		all := append(kinds[:0:0], kinds...)
		if pooling {
			all[1] = pools
		}
		p := &step.Plan{ID: 1}
		for i, k := range all {
			params := greedy()
			k.params(&params)
			next := plan(1, piece{uint32(i), 0, 5, prompt, []uint32{uint32(i)}})
			p.Rows, p.Blocks = append(p.Rows, next.Rows...), append(p.Blocks, next.Blocks...)
			p.New = append(p.New, step.NewRequest{Slot: uint32(i), PromptLen: 5,
				Tokens: tokens(5, i), Params: params, Constraint: k.constraint,
				Pooling: k.pooling})
			if k.constraint.Kind != constrain.None {
				<-r.opt.Grammars.Start(k.constraint, nil).Done()
			}
		}
		return execute(t, r, o, p)
	}
	for _, pooling := range []bool{false, true} {
		want := run(nil, pooling)
		if want.Token[3] != sample.Stuck || want.Token[2] < 0 {
			t.Fatalf("%+v", want)
		}
		all := new(sampler)
		if got := run(all, pooling); !reflect.DeepEqual(got, want) {
			t.Errorf("on the device\n%+v, want\n%+v", got, want)
		}
		if (all.rows > 0) == pooling {
			t.Errorf("the device sampled %d rows, logits being wanted: %v", all.rows, pooling)
		}
		none := &sampler{refuses: func(r *sample.Row) bool { return r.Params.Temperature > 0 }}
		if got := run(none, pooling); !reflect.DeepEqual(got, want) || none.rows > 0 {
			t.Errorf("on the host\n%+v, want\n%+v", got, want)
		}
	}
}

// TestOnDeviceFails ends a plan when the device has failed.
func TestOnDeviceFails(t *testing.T) {
	r, _ := newRunner(t, true)
	gone := errors.New("gone")
	r.opt.Sampler = &sampler{fail: gone}
	p := plan(1, piece{0, 0, 5, prompt, []uint32{1}})
	p.New = []step.NewRequest{{Slot: 0, PromptLen: 5, Tokens: tokens(5, 1), Params: greedy()}}
	if err := r.Execute(p, new(step.Result)); !errors.Is(err, gone) {
		t.Error(err)
	}
}
