package layouts

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// modelUnderTest is what a workload runs on.
type modelUnderTest struct {
	// folder is below testdata; dummy makes weights of its shapes up.
	folder string
	dummy  bool
	vocab  int32
	// maxLen is --max-model-len, in tokens.
	maxLen int
	// states says that layers keep a state of each request.
	states bool
	// predicts says that the family has a layer that predicts a token more, eagle that tests make a
	// head of EAGLE-3 for the model.
	predicts, eagle bool
	dtype           string
	// cacheDType is --kv-cache-dtype.
	cacheDType string
	isa        string
}

func (m *modelUnderTest) String() string {
	weights := ""
	if m.dummy {
		weights = " with dummy weights"
	}
	isa := m.isa
	if isa == "" {
		isa = "best"
	}
	return fmt.Sprintf("%s%s, %s, KV cache %s, instruction set %s", m.folder, weights, m.dtype,
		m.cacheDType, isa)
}

// models are small; those of the first lines have the layers and heads for every layout. The
// vocabulary is that of config.json.
var models = []modelUnderTest{
	{folder: "models/llama-tiny", vocab: 1024, maxLen: 176, eagle: true},
	{folder: "models/qwen2-tiny", vocab: 1024, maxLen: 176, eagle: true},
	{folder: "models/qwen3-tiny", vocab: 1024, maxLen: 176, eagle: true},
	{folder: "models/qwen3moe-tiny", vocab: 1024, maxLen: 176, eagle: true},
	{folder: "models/opt-tiny", vocab: 1024, maxLen: 176},
	{folder: "models/gemma2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/gemma3-tiny", vocab: 512, maxLen: 176},
	{folder: "models/phi3-tiny", vocab: 512, maxLen: 176},
	{folder: "models/mixtral-tiny", vocab: 512, maxLen: 176},
	{folder: "models/qwen2moe-tiny", vocab: 512, maxLen: 176},
	{folder: "models/granite-tiny", vocab: 512, maxLen: 176},
	{folder: "models/olmo2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/cohere2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/smollm3-tiny", vocab: 512, maxLen: 176},
	{folder: "models/glm4-tiny", vocab: 512, maxLen: 176},
	{folder: "models/glm4moe-tiny", vocab: 512, maxLen: 176, predicts: true},
	{folder: "models/starcoder2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/gptneox-tiny", vocab: 512, maxLen: 176},
	{folder: "models/gpt-oss-tiny", vocab: 512, maxLen: 176},
	{folder: "models/gpt-oss-mxfp4-tiny", vocab: 512, maxLen: 176},
	{folder: "models/deepseek-v3-tiny", vocab: 512, maxLen: 176, predicts: true},
	{folder: "models/deepseekv2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/granitemoe-tiny", vocab: 512, maxLen: 176},
	{folder: "models/granitemoeshared-tiny", vocab: 512, maxLen: 176},
	{folder: "models/minimaxm2-tiny", vocab: 512, maxLen: 176},
	{folder: "models/olmo3-tiny", vocab: 512, maxLen: 176},
	{folder: "models/phi3-longrope-tiny", vocab: 512, maxLen: 176},
	{folder: "models/qwen3next-tiny", vocab: 512, maxLen: 176, states: true, predicts: true},
	{folder: "models/go-std-tiny", vocab: 2048, maxLen: 176},
	{folder: "models/llama-tiny", vocab: 1024, maxLen: 176, dummy: true},
	{folder: "variants/qwen3moe-mixed", vocab: 128, maxLen: 128},
	{folder: "variants/mistral-window", vocab: 131, maxLen: 128},
	{folder: "variants/qwen3-one-kv-head", vocab: 131, maxLen: 128},
	{folder: "variants/opt-post-norm", vocab: 131, maxLen: 96},
}

// path is where the model's folder is from this package.
func (m *modelUnderTest) path() string {
	if filepath.IsAbs(m.folder) {
		return m.folder
	}
	return filepath.Join("..", "..", "testdata", m.folder)
}

// workload is some requests, made from a seed.
type workload struct {
	seed        uint64
	model       modelUnderTest
	submissions []submission
	// adapters is the folder of those that requests ask for, "" for none.
	adapters string
	// ray is where cells with the backend ray are run.
	ray config.Ray
}

// submission is requests that are submitted together: the choices of one answer.
type submission struct {
	requests []*engine.Request
	// after is a submission before this one that must have got so many tokens, or be over, before
	// this one is submitted when they are mixed; -1 is none.
	after, tokens int
	// abort gives the requests up as soon as so many tokens have come of all of them; 0 is never.
	abort int
}

// draw makes the workload of a seed.
func draw(seed uint64) *workload {
	rng := rand.New(rand.NewPCG(seed, 0))
	m := models[rng.IntN(len(models))]
	m.dtype = pick(rng, "bfloat16", "bfloat16", "float32", "float16")
	m.cacheDType = pick(rand.New(rand.NewPCG(seed, 3)), "auto", "auto", "int8", "fp8_e4m3")
	if m.isa = pick(rng, "", "", "", "", "", "portable"); m.vocab > 1024 {
		m.isa = "" // it takes half a minute
	}
	return drawOn(seed, m)
}

// drawOn makes the workload of a seed on a model.
func drawOn(seed uint64, m modelUnderTest) *workload {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &workload{seed: seed, model: m}
	beginnings := make([][]int32, 3)
	for i := range beginnings {
		beginnings[i] = tokens(rng, w.model.vocab, w.model.maxLen*2/3)
	}
	for i := range 5 + rng.IntN(5) {
		w.submissions = append(w.submissions, drawSubmission(rng, &w.model, i, beginnings))
	}
	return w
}

func drawSubmission(rng *rand.Rand, m *modelUnderTest, i int, beginnings [][]int32) submission {
	s := submission{after: -1}
	if i > 0 && rng.IntN(2) == 0 {
		s.after, s.tokens = rng.IntN(i), rng.IntN(12)
	}
	if rng.IntN(5) == 0 {
		s.abort = 1 + rng.IntN(12)
	}
	first := drawRequest(rng, m, beginnings[rng.IntN(len(beginnings))])
	choices := 1
	if rng.IntN(4) == 0 {
		choices = 2 + rng.IntN(2)
	}
	for c := range choices {
		r := *first
		r.Params.Seed += uint64(c)
		s.requests = append(s.requests, &r)
	}
	return s
}

func drawRequest(rng *rand.Rand, m *modelUnderTest, beginning []int32) *engine.Request {
	prompt := slices.Clone(beginning[:rng.IntN(len(beginning))])
	switch rng.IntN(8) {
	case 0: // one that fills the model's length
		prompt = append(prompt, tokens(rng, m.vocab, m.maxLen-len(prompt)-1-rng.IntN(10))...)
	case 1: // a short one
		prompt = tokens(rng, m.vocab, 1+rng.IntN(4))
	default:
		prompt = append(prompt, tokens(rng, m.vocab, 1+rng.IntN(len(beginning)-len(prompt)))...)
	}
	r := engine.NewRequest(prompt, drawParams(rng, m.vocab, int32(m.maxLen-len(prompt))))
	r.Priority = rng.IntN(3) - 1
	r.Salt = pick(rng, "", "", "", "salt")
	if rng.IntN(4) == 0 {
		r.Stop = []string{pick(rng, "e", "in", "s ", "the", "\n"), "return nil"}
		r.IncludeStop = rng.IntN(2) == 0
	}
	// The smallest vocabularies cannot spell every text.
	if p := &r.Params; rng.IntN(4) == 0 && m.vocab > 256 && p.AllowedTokens == nil &&
		p.BadWords == nil {
		r.Constraint = pick(rng, constrain.Spec{Kind: constrain.JSONObject},
			constrain.Spec{Kind: constrain.Regex, Text: `([a-z]{1,7}( |, )){2,20}[a-z]+\.`},
			constrain.Spec{Kind: constrain.Regex,
				Text: `(It returns [0-9]{1,2}, unless it is not called; ){1,3}`})
	}
	drawDescription(rand.New(rand.NewPCG(r.Params.Seed, 0)), m.vocab, r)
	return r
}

func drawParams(rng *rand.Rand, vocab, room int32) sample.Params {
	p := sample.Params{TopP: 1, RepetitionPenalty: 1, Logprobs: sample.NoLogprobs,
		PromptLogprobs: sample.NoLogprobs, EOS: 2, Seed: rng.Uint64(),
		MaxTokens: 1 + rng.Int32N(pick[int32](rng, 24, 24, 60)), IgnoreEOS: rng.IntN(2) == 0}
	if rng.IntN(3) > 0 {
		p.Temperature = 0.3 + 1.2*rng.Float32()
		p.TopP = pick[float32](rng, 1, 1, 0.9, 0.5)
		p.TopK = pick[int32](rng, 0, 0, 5, 40)
		p.MinP = pick[float32](rng, 0, 0, 0.05)
	}
	p.RepetitionPenalty = pick[float32](rng, 1, 1, 1.3, 0.8)
	p.PresencePenalty = pick[float32](rng, 0, 0, 0.5)
	p.FrequencyPenalty = pick[float32](rng, 0, 0, 0.7)
	p.Logprobs = pick[int32](rng, 5, 3, 0, sample.NoLogprobs, sample.AllLogprobs)
	p.PromptLogprobs = pick[int32](rng, sample.NoLogprobs, sample.NoLogprobs, 0, 2)
	p.MinTokens = pick(rng, 0, 0, min(room, rng.Int32N(p.MaxTokens+1)))
	if rng.IntN(3) == 0 {
		p.StopTokens = tokens(rng, vocab, int(vocab/64))
	}
	if rng.IntN(4) == 0 {
		for _, id := range tokens(rng, vocab, 6) {
			p.LogitBias = append(p.LogitBias, sample.Bias{ID: id, Value: rng.Float32()*20 - 10})
		}
	}
	if rng.IntN(6) == 0 {
		p.AllowedTokens = tokens(rng, vocab, 50)
	}
	if rng.IntN(4) == 0 {
		p.BadWords = [][]int32{tokens(rng, vocab, 1), tokens(rng, vocab, 2)}
	}
	return p
}

// drawDescription draws what log-probabilities are of, and what ends reasoning and repetition.
func drawDescription(rng *rand.Rand, vocab int32, r *engine.Request) {
	p := &r.Params
	p.Processed, p.AsLogits = rng.IntN(4) == 0, rng.IntN(4) == 0
	if p.Logprobs == 0 && rng.IntN(2) == 0 {
		p.LogprobTokens = tokens(rng, vocab, 5)
	}
	if rng.IntN(4) == 0 && r.Constraint.Kind == constrain.None {
		p.ThinkingBudget, p.ThinkingEnd = rng.Int32N(20), tokens(rng, vocab, 1+rng.IntN(3))
	}
	if rng.IntN(4) == 0 {
		r.Repetition = schedule.Repetition{MinPattern: 1, MaxPattern: 1 + rng.IntN(3),
			MinCount: 2 + rng.IntN(3)}
	}
}

// tokens are n of a vocabulary, which begins with three that stand for no text.
func tokens(rng *rand.Rand, vocab int32, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = 3 + rng.Int32N(vocab-3)
	}
	return ids
}

func pick[T any](rng *rand.Rand, values ...T) T { return values[rng.IntN(len(values))] }
