package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func neutral() Params {
	return Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, MaxTokens: 16, EOS: -1,
		Logprobs: NoLogprobs, PromptLogprobs: NoLogprobs}
}

func with(change func(*Params)) *Params {
	p := neutral()
	change(&p)
	return &p
}

func sampleCopy(s *Sampler, row []float32, p *Params, st *State, position uint32) int32 {
	return s.Sample(slices.Clone(row), p, st, position)
}

func randomRow(r *rand.Rand, n int, spread float64) []float32 {
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(r.NormFloat64() * spread)
	}
	return row
}

// TestProcessors checks what each logits processor makes of a row, by hand.
func TestProcessors(t *testing.T) {
	inf := negInf
	tests := []struct {
		name           string
		change         func(*Params)
		prompt, output []int32
		row, want      []float32
	}{
		{"nothing", func(*Params) {}, []int32{0}, []int32{1}, []float32{1, 2, 3}, []float32{1, 2,
			3}},
		{"allowed", func(p *Params) { p.AllowedTokens = []int32{2, 0, 2, 9} }, nil, nil,
			[]float32{1, 2, 3}, []float32{1, inf, 3}},
		{"bad word of one", func(p *Params) { p.BadWords = [][]int32{{1}} }, nil, nil,
			[]float32{1, 2, 3}, []float32{1, inf, 3}},
		{"bad word of two, begun", func(p *Params) { p.BadWords = [][]int32{{1, 2}} }, nil,
			[]int32{0, 1}, []float32{1, 2, 3}, []float32{1, 2, inf}},
		{"bad word of two, not begun", func(p *Params) { p.BadWords = [][]int32{{1, 2}} }, nil,
			[]int32{1, 0}, []float32{1, 2, 3}, []float32{1, 2, 3}},
		{"bad word begun in the prompt only", func(p *Params) { p.BadWords = [][]int32{{1, 2}} },
			[]int32{1}, nil, []float32{1, 2, 3}, []float32{1, 2, 3}},
		{"bad words of three and one", func(p *Params) { p.BadWords = [][]int32{{0, 1, 2}, {0}} },
			nil, []int32{2, 2, 0, 1}, []float32{1, 2, 3}, []float32{inf, 2, inf}},
		{"bad word longer than the output", func(p *Params) { p.BadWords = [][]int32{{0, 1, 2}} },
			nil, []int32{1}, []float32{1, 2, 3}, []float32{1, 2, 3}},
		{"min_tokens not reached", func(p *Params) {
			p.MinTokens, p.EOS, p.StopTokens = 2, 0,
				[]int32{2}
		}, nil, []int32{1}, []float32{1, 2, 3}, []float32{inf, 2, inf}},
		{"min_tokens suppresses an ignored EOS", func(p *Params) {
			p.MinTokens, p.EOS,
				p.IgnoreEOS = 1, 0, true
		}, nil, nil, []float32{1, 2, 3}, []float32{inf, 2, 3}},
		{"min_tokens suppresses further ends that are ignored", func(p *Params) {
			p.MinTokens, p.EOS, p.IgnoreEOS, p.Withheld = 1, 0, true, []int32{2}
		}, nil, nil, []float32{1, 2, 3}, []float32{inf, 2, inf}},
		{"min_tokens reached", func(p *Params) { p.MinTokens, p.EOS = 1, 0 }, nil, []int32{1},
			[]float32{1, 2, 3}, []float32{1, 2, 3}},
		{"bias", func(p *Params) { p.LogitBias = []Bias{{0, 5}, {2, -100}} }, nil, nil,
			[]float32{1, 2, 3}, []float32{6, 2, -97}},
		{"bias cannot revive a masked token", func(p *Params) {
			p.AllowedTokens, p.LogitBias = []int32{1}, []Bias{{0, 100}}
		}, nil, nil, []float32{1, 2, 3}, []float32{inf, 2, inf}},
		{"repetition over prompt and output", func(p *Params) { p.RepetitionPenalty = 2 },
			[]int32{0, 0}, []int32{1}, []float32{4, -4, 4}, []float32{2, -8, 4}},
		{"presence, output only", func(p *Params) { p.PresencePenalty = 0.5 }, []int32{0},
			[]int32{1, 1}, []float32{4, 4, 4}, []float32{4, 3.5, 4}},
		{"frequency, output only", func(p *Params) { p.FrequencyPenalty = 0.5 }, []int32{0},
			[]int32{1, 1, 2}, []float32{4, 4, 4}, []float32{4, 3, 3.5}},
		{"all penalties", func(p *Params) {
			p.RepetitionPenalty, p.FrequencyPenalty,
				p.PresencePenalty = 2, 0.25, 1
		}, []int32{0}, []int32{1, 1}, []float32{4, 4, 4},
			[]float32{2, 0.5, 4}},
		{"bias comes before the repetition penalty", func(p *Params) {
			p.RepetitionPenalty, p.LogitBias = 2, []Bias{{0, 4}}
		}, []int32{0}, nil, []float32{-2, 0, 0}, []float32{1, 0, 0}},
		{"ids outside the row", func(p *Params) {
			p.BadWords, p.LogitBias, p.StopTokens, p.MinTokens = [][]int32{{7}}, []Bias{{-3, 1},
				{3, 1}}, []int32{99}, 1
			p.PresencePenalty, p.RepetitionPenalty = 1, 3
		}, []int32{50, -1}, nil, []float32{1, 2, 3}, []float32{1, 2, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := with(tt.change)
			var s Sampler
			got := slices.Clone(tt.row)
			s.process(got, p, NewState(p, tt.prompt, tt.output))
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestKept draws many times and checks exactly which tokens appear.
func TestKept(t *testing.T) {
	// Probabilities 1/2, 1/4, 1/8, 1/16, 1/16.
	ln2 := math.Ln2
	row := []float32{float32(-4 * ln2), float32(-ln2), float32(-2 * ln2), float32(-3 * ln2),
		float32(-4 * ln2)}
	ties := []float32{1, 3, 3, 3, 2}
	tests := []struct {
		name   string
		row    []float32
		change func(*Params)
		want   []int32
	}{
		{"all", row, func(*Params) {}, []int32{0, 1, 2, 3, 4}},
		{"greedy", row, func(p *Params) { p.Temperature = 0 }, []int32{1}},
		{"greedy below the threshold", row, func(p *Params) { p.Temperature = 0.9e-5 }, []int32{1}},
		{"greedy tie takes the lowest id", ties, func(p *Params) { p.Temperature = 0 }, []int32{1}},
		{"cold", row, func(p *Params) { p.Temperature = 0.01 }, []int32{1}},
		{"top-k 1", row, func(p *Params) { p.TopK = 1 }, []int32{1}},
		{"top-k 2", row, func(p *Params) { p.TopK = 2 }, []int32{1, 2}},
		{"top-k keeps all that equal the k-th", ties, func(p *Params) { p.TopK = 2 }, []int32{1, 2,
			3}},
		{"top-k 4 with a tie at the end", row, func(p *Params) { p.TopK = 4 }, []int32{0, 1, 2, 3,
			4}},
		{"top-k of the vocabulary", row, func(p *Params) { p.TopK = 5 }, []int32{0, 1, 2, 3, 4}},
		{"top-k beyond the vocabulary", row, func(p *Params) { p.TopK = 1000 }, []int32{0, 1, 2, 3,
			4}},
		{"top-p tiny", row, func(p *Params) { p.TopP = 1e-30 }, []int32{1}},
		{"top-p just one", row, func(p *Params) { p.TopP = 0.49 }, []int32{1}},
		{"top-p needs two", row, func(p *Params) { p.TopP = 0.51 }, []int32{1, 2}},
		{"top-p needs three", row, func(p *Params) { p.TopP = 0.76 }, []int32{1, 2, 3}},
		{"top-p cuts a tie by id", row, func(p *Params) { p.TopP = 0.9 }, []int32{0, 1, 2, 3}},
		{"top-p cuts three equal ones", ties, func(p *Params) { p.TopP = 0.4 }, []int32{1, 2}},
		{"top-p just below one", row, func(p *Params) { p.TopP = math.Nextafter32(1, 0) },
			[]int32{0, 1, 2, 3, 4}},
		{"min-p", row, func(p *Params) { p.MinP = 0.3 }, []int32{1, 2}},
		{"min-p of one keeps the ties", ties, func(p *Params) { p.MinP = 1 }, []int32{1, 2, 3}},
		{"min-p tiny", row, func(p *Params) { p.MinP = 1e-30 }, []int32{0, 1, 2, 3, 4}},
		{"min-p after temperature", row, func(p *Params) { p.MinP, p.Temperature = 0.3, 2 },
			[]int32{1, 2, 3, 0, 4}},
		{"top-p of what top-k left", row, func(p *Params) { p.TopK, p.TopP = 2, 0.66 }, []int32{1}},
		{"top-p of what min-p left", row, func(p *Params) { p.MinP, p.TopP = 0.2, 0.86 }, []int32{1,
			2, 3}},
		{"top-k after min-p", row, func(p *Params) { p.MinP, p.TopK = 0.3, 4 }, []int32{1, 2}},
		{"min-p after top-k bound", row, func(p *Params) { p.MinP, p.TopK = 0.1, 2 }, []int32{1,
			2}},
		{"masked tokens are never drawn", []float32{negInf, 0, negInf, 0}, func(*Params) {},
			[]int32{1, 3}},
		{"top-k larger than what is possible", []float32{negInf, 0, negInf, 0},
			func(p *Params) { p.TopK = 3 }, []int32{1, 3}},
		{"NaN is masked", []float32{float32(math.NaN()), 0, float32(math.Copysign(math.NaN(), -1)),
			0}, func(p *Params) { p.TopP = 0.99999 }, []int32{1, 3}},
		{"plus infinity is certain", []float32{0, float32(math.Inf(1)), float32(math.Inf(1))},
			func(*Params) {}, []int32{1}},
		{"nothing left", []float32{negInf, negInf}, func(*Params) {}, []int32{0}},
		{"nothing but NaN", []float32{float32(math.NaN()), float32(math.NaN())},
			func(p *Params) { p.TopK = 1 }, []int32{0}},
		{"nothing left of the allowed", []float32{0, 0, 0}, func(p *Params) {
			p.AllowedTokens, p.BadWords = []int32{7, 2}, [][]int32{{2}}
		}, []int32{2}},
		{"empty row", nil, func(*Params) {}, []int32{-1}},
		{"all negative", []float32{-5, -3, -9}, func(p *Params) { p.TopK = 1 }, []int32{1}},
		{"zeros of both signs tie", []float32{float32(math.Copysign(0, -1)), 0},
			func(p *Params) { p.TopK = 1 }, []int32{0, 1}},
		{"huge logits", []float32{math.MaxFloat32, -math.MaxFloat32},
			func(p *Params) { p.TopP = 0.5 }, []int32{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s Sampler
			p := with(tt.change)
			seen := map[int32]bool{}
			for pos := range uint32(2000) {
				seen[sampleCopy(&s, tt.row, p, nil, pos)] = true
			}
			var got []int32
			for id := range seen {
				got = append(got, id)
			}
			slices.Sort(got)
			want := slices.Sorted(slices.Values(tt.want))
			if !slices.Equal(got, want) {
				t.Errorf("drew %v, want %v", got, want)
			}
		})
	}
}

// TestReference compares with the naive sampler on random logits under all combinations of
// parameters.
func TestReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s Sampler
	n := 0
	for _, vocab := range []int{1, 7, 100, 3000} {
		for _, spread := range []float64{0.1, 3, 12} {
			for _, temperature := range []float32{0, 0.05, 0.7, 1, 3} {
				for _, topP := range []float32{1, 0.999, 0.9, 0.3} {
					for _, topK := range []int32{0, 1, 5, 200, 2000} {
						for _, minP := range []float32{0, 0.02, 0.5} {
							row := randomRow(r, vocab, spread)
							if r.IntN(3) == 0 { // coarse values make ties
								for i := range row {
									row[i] = float32(math.Round(float64(row[i])))
								}
							}
							p := with(func(p *Params) {
								p.Temperature, p.TopP, p.TopK, p.MinP = temperature, topP, topK,
									minP
								p.Seed = r.Uint64()
							})
							prompt, output := randomise(r, p, vocab)
							st := NewState(p, prompt, output)
							pos := r.Uint32()
							want, kept := reference(row, p, prompt, output, pos)
							if got := sampleCopy(&s, row, p, st, pos); got != want {
								t.Fatalf("vocab %d %+v: got %d (p=%g), want %d (p=%g) of %d", vocab,
									*p, got, kept[got], want, kept[want], len(kept))
							}
							logprob := processed(&s, row, p, st, pos) - math.Log(kept[want])
							if temperature > 0 && math.Abs(logprob) > 1e-3 {
								t.Fatalf("vocab %d %+v: the log-probability is %g off", vocab, *p,
									logprob)
							}
							n++
						}
					}
				}
			}
		}
	}
	if n != 4*3*5*4*5*3 {
		t.Fatalf("ran %d cases", n)
	}
}

// processed is the log-probability by which a token is drawn.
func processed(s *Sampler, row []float32, p *Params, st *State, position uint32) float64 {
	row = slices.Clone(row)
	token := s.Sample(row, p, st, position)
	s.Processed(row, p)
	sampled, _ := s.Logprobs(row, token, 0, false, nil)
	return float64(sampled.Logprob)
}

// TestProcessedOfGreedy wants the log-probability of a greedy choice to be that of the logits after
// penalties and masks, whatever the filters are.
func TestProcessedOfGreedy(t *testing.T) {
	p := with(func(p *Params) {
		p.Temperature, p.TopK, p.LogitBias = 0, 1, []Bias{{1, 5}}
	})
	var s Sampler
	got := processed(&s, []float32{1, -3, 0}, p, nil, 0)
	want := 2 - math.Log(math.Exp(1)+math.Exp(2)+math.Exp(0))
	if math.Abs(got-want) > 1e-6 {
		t.Errorf("log-probability %g, want %g", got, want)
	}
}

// randomise turns on a random choice of processors, never masking everything.
func randomise(r *rand.Rand, p *Params, vocab int) (prompt, output []int32) {
	id := func() int32 { return int32(r.IntN(vocab)) }
	for range r.IntN(20) {
		prompt = append(prompt, id())
	}
	for range r.IntN(20) {
		output = append(output, id())
	}
	if r.IntN(2) == 0 {
		p.RepetitionPenalty = 0.5 + r.Float32()*2
	}
	if r.IntN(2) == 0 {
		p.FrequencyPenalty = r.Float32()*4 - 2
	}
	if r.IntN(2) == 0 {
		p.PresencePenalty = r.Float32()*4 - 2
	}
	if r.IntN(2) == 0 {
		p.LogitBias = []Bias{{id(), r.Float32()*20 - 10}}
	}
	if vocab < 50 {
		return prompt, output
	}
	if r.IntN(3) == 0 {
		for range vocab / 2 {
			p.AllowedTokens = append(p.AllowedTokens, id())
		}
	}
	if r.IntN(3) == 0 {
		p.BadWords = [][]int32{{id()}, {id(), id()}}
		if n := len(output); n > 1 {
			p.BadWords = append(p.BadWords, []int32{output[n-2], output[n-1], id()})
		}
	}
	if r.IntN(3) == 0 {
		p.MinTokens, p.EOS, p.StopTokens = int32(r.IntN(30)), id(), []int32{id()}
		p.Withheld = []int32{id()}
	}
	return prompt, output
}

// TestDistribution compares drawn frequencies with the probabilities by a chi-square test at fixed
// seeds.
func TestDistribution(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	row := randomRow(r, 40, 1.5)
	for i, p := range []*Params{
		with(func(p *Params) {}),
		with(func(p *Params) { p.Temperature = 0.5; p.Seed = 9 }),
		with(func(p *Params) { p.TopK = 10; p.Seed = 1 << 40 }),
		with(func(p *Params) { p.TopP = 0.8; p.Seed = math.MaxUint64 }),
		with(func(p *Params) { p.MinP = 0.1; p.TopP = 0.95; p.Temperature = 1.5 }),
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			_, kept := reference(row, p, nil, nil, 0)
			draws := 200_000.0
			if testing.Short() {
				draws = 50_000
			}
			var s Sampler
			counts := map[int32]float64{}
			for pos := range uint32(draws) {
				counts[sampleCopy(&s, row, p, nil, pos)]++
			}
			chi := 0.0
			for id, q := range kept {
				d := counts[id] - q*draws
				chi += d * d / (q * draws)
				delete(counts, id)
			}
			if len(counts) > 0 {
				t.Errorf("drew tokens that were not kept: %v", counts)
			}
			// Mean + 4 standard deviations of the chi-square distribution (its variance is twice
			// the mean).
			df := float64(len(kept) - 1)
			if limit := df + 4*math.Sqrt(2*df); chi > limit {
				t.Errorf("chi-square %.1f with %g degrees of freedom, limit %.1f", chi, df, limit)
			}
		})
	}
}

// TestKeyedByPosition checks that the generator depends on seed and position and nothing else.
func TestKeyedByPosition(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	rows := make([][]float32, 64)
	for i := range rows {
		rows[i] = randomRow(r, 500+i, 1)
	}
	p := with(func(p *Params) { p.TopP, p.Seed = 0.9, 77 })
	var one Sampler
	var want []int32
	for i, row := range rows {
		want = append(want, sampleCopy(&one, row, p, nil, uint32(i)))
	}
	var two Sampler
	// another order, other neighbours, another scratch history
	for _, i := range r.Perm(len(rows)) {
		two.Sample(randomRow(r, 900, 5), with(func(p *Params) { p.TopK = 300 }), nil, 1)
		if got := sampleCopy(&two, rows[i], p, nil, uint32(i)); got != want[i] {
			t.Errorf("row %d: got %d, want %d", i, got, want[i])
		}
	}
	differ := 0
	for i, row := range rows {
		if sampleCopy(&one, row, with(func(p *Params) { p.TopP, p.Seed = 0.9, 78 }), nil,
			uint32(i)) != want[i] {
			differ++
		}
	}
	if differ < len(rows)/2 {
		t.Errorf("another seed changed only %d of %d tokens", differ, len(rows))
	}
}

func TestNoAllocations(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	row := randomRow(r, 32000, 3)
	scratch := make([]float32, len(row))
	var s Sampler
	for name, p := range map[string]*Params{
		"greedy":    with(func(p *Params) { p.Temperature = 0 }),
		"plain":     with(func(p *Params) {}),
		"top-p":     with(func(p *Params) { p.TopP = 0.95 }),
		"top-k":     with(func(p *Params) { p.TopK, p.TopP, p.Temperature = 20, 0.8, 0.7 }),
		"top-k big": with(func(p *Params) { p.TopK = 1000 }),
		"all": with(func(p *Params) {
			p.MinP, p.TopK, p.TopP, p.RepetitionPenalty, p.FrequencyPenalty = 0.01, 50, 0.9, 1.1,
				0.1
			p.BadWords, p.AllowedTokens, p.LogitBias = [][]int32{{1, 2, 3}}, []int32{1, 2, 3, 4, 5},
				[]Bias{{3, 1}}
			p.MinTokens, p.EOS, p.MaxTokens = 5, 2, 100_000
		}),
	} {
		st := NewState(p, []int32{1, 2, 3}, nil)
		pos := uint32(0)
		step := func() {
			copy(scratch, row)
			token := s.Sample(scratch, p, st, pos)
			s.Processed(scratch, p)
			st.Append(token)
			pos++
		}
		step()
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s: %v allocations per token", name, n)
		}
	}
	top := make([]Choice, 0, 32)
	if n := testing.AllocsPerRun(20, func() { s.Logprobs(row, 5, 20, false, top[:0]) }); n != 0 {
		t.Errorf("Logprobs: %v allocations", n)
	}
}

func FuzzSample(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint64(1), uint32(2), float32(1), float32(0.9), int32(3),
		float32(0.1))
	f.Add([]byte{0xff, 0xc0, 0, 0, 0x7f, 0x80, 0, 0}, uint64(0), uint32(0), float32(0.01),
		float32(1), int32(0), float32(0))
	f.Add([]byte{}, uint64(0), uint32(0), float32(0), float32(1), int32(0), float32(0))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, pos uint32, temperature, topP float32,
		topK int32, minP float32) {
		row := make([]float32, len(data)/4)
		for i := range row {
			b := data[4*i:]
			row[i] = math.Float32frombits(uint32(b[0])<<24 | uint32(
				b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
		}
		p := with(func(p *Params) {
			p.Seed, p.Temperature, p.TopP, p.TopK, p.MinP = seed, temperature, topP, topK, minP
		})
		if p.Validate(len(row)) != nil {
			return
		}
		if p.Temperature > 0 {
			p.Temperature = max(p.Temperature, minTemperature) // as Resolve does
		}
		var s Sampler
		got := sampleCopy(&s, row, p, nil, pos)
		if len(row) == 0 {
			if got != -1 {
				t.Fatalf("token %d from an empty row", got)
			}
			return
		}
		if got < 0 || int(got) >= len(row) {
			t.Fatalf("token %d of %d", got, len(row))
		}
		if s.survey(row); s.best(row) >= 0 && !(row[got] > negInf) {
			t.Fatalf("masked token %d although %d is possible", got, s.best(row))
		}
		var other Sampler
		other.Sample([]float32{3, 2, 1}, p, nil, 0)
		if again := sampleCopy(&other, row, p, nil, pos); again != got {
			t.Fatalf("token %d, then %d", got, again)
		}
	})
}

// Qwen3's vocabulary: rows of a normal distribution, where nearly all tokens count, and rows as
// models have them, where some tokens stand out.
func BenchmarkSample(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	flat, peaked := randomRow(r, 151936, 3), randomRow(r, 151936, 2)
	for range 40 {
		peaked[r.IntN(len(peaked))] = float32(12 + r.ExpFloat64()*2)
	}
	for _, bb := range []struct {
		name string
		p    *Params
	}{
		{"greedy", with(func(p *Params) { p.Temperature = 0 })},
		{"temperature", with(func(p *Params) {})},
		{"top_p=0.95", with(func(p *Params) { p.TopP = 0.95 })},
		{"top_k=20,top_p=0.8", with(func(p *Params) {
			p.TopK, p.TopP, p.Temperature = 20, 0.8, 0.7
		})},
		{"top_k=1000", with(func(p *Params) { p.TopK = 1000 })},
		{"min_p=0.05", with(func(p *Params) { p.MinP = 0.05 })},
	} {
		for name, row := range map[string][]float32{"flat": flat, "peaked": peaked} {
			b.Run(bb.name+"/"+name, func(b *testing.B) {
				var s Sampler
				b.ReportAllocs()
				shortest, pos := time.Duration(math.MaxInt64), uint32(0)
				for b.Loop() {
					begun := time.Now()
					s.Sample(row, bb.p, nil, pos) // these parameters leave the row as it is
					shortest = min(shortest, time.Since(begun))
					pos++
				}
				b.ReportMetric(float64(shortest.Nanoseconds()), "best-ns")
			})
		}
	}
	b.Run("logprobs=20", func(b *testing.B) {
		var s Sampler
		top := make([]Choice, 0, 64)
		shortest := time.Duration(math.MaxInt64)
		for b.Loop() {
			begun := time.Now()
			s.Logprobs(peaked, 100, 20, false, top[:0])
			shortest = min(shortest, time.Since(begun))
		}
		b.ReportMetric(float64(shortest.Nanoseconds()), "best-ns")
	})
}
