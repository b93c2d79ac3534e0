// Package eagleray runs large language models inside a Go program: open a model, generate, close.
//
//	llm, err := eagleray.Open(ctx, eagleray.Options{Model: "path/or/org/name"})
//	if err != nil { … }
//	defer llm.Close()
//	params := eagleray.SamplingParams{MaxTokens: 32}
//	out, err := llm.Generate(ctx, []string{"Once upon a time"}, params)
//
// The program eagleray (cmd/eagleray) serves the same engine over HTTP. With more than one rank
// Open starts worker processes from the running binary, which must then call [RunWorker] first
// thing in main.
package eagleray

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/group/launch/invited"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	_ "github.com/eagleray/eagleray/internal/sys/linuxonly"
)

// Options say which model is opened and how. The zero value is the built-in demonstration model.
type Options struct {
	// Model is a folder in Hugging Face layout, a Hub repo id, or "" for the built-in model.
	Model string
	// TensorParallelSize is the number of ranks each layer is divided among; 0 is 1.
	TensorParallelSize int
	// DataParallelSize is the number of replicas, each with ranks of its own; 0 is 1. Prompts are
	// shared out among them.
	DataParallelSize int
	// PipelineParallelSize is the number of stages the layers are divided among; 0 is 1.
	PipelineParallelSize int
	// DType is bfloat16, float16, float32, or "" for the checkpoint's.
	DType string
	// MaxModelLen bounds prompt plus output in tokens; 0 is what the model allows.
	MaxModelLen int
	// KVCacheMemoryBytes is the size of each rank's KV cache; 0 chooses one.
	KVCacheMemoryBytes int64
	// Log receives what the engine has to say; nil is silence.
	Log *slog.Logger
}

// SamplingParams say how an output is generated. A nil pointer means the model's own default, else
// OpenAI's.
type SamplingParams struct {
	// MaxTokens bounds the output; 0 is the model's own default, else 16.
	MaxTokens int
	// Temperature 0 is greedy.
	Temperature, TopP, MinP *float32
	// TopK 0 is off.
	TopK *int
	// Seed makes sampling repeatable; nil draws one.
	Seed *uint64
	// Stop are strings that end the output; they are not part of it.
	Stop []string
	// IgnoreEOS goes on after the model's end-of-sequence tokens.
	IgnoreEOS bool
	// Logprobs is how many of the most likely tokens are reported beside each token of the output;
	// nil reports none, not even that token.
	Logprobs *int
	// LogprobTokenIDs are tokens to report instead of the most likely ones.
	LogprobTokenIDs []int32
}

// Output is one finished generation.
type Output struct {
	// Text is the output without special tokens, Tokens its ids.
	Text   string
	Tokens []int32
	// FinishReason is "stop" or "length".
	FinishReason string
	// PromptTokens counts the prompt.
	PromptTokens int
	// Logprobs says how each of Tokens was chosen, where that was asked for.
	Logprobs []Logprobs
}

// Logprobs is a token of the output, and those that were asked for beside it: the most likely ones
// in their order, or the token itself and then those of LogprobTokenIDs.
type Logprobs struct {
	Token TokenLogprob
	Top   []TokenLogprob
}

// TokenLogprob is a token with the natural logarithm of its probability and its rank; that of the
// most likely one is 1.
type TokenLogprob struct {
	Token   int32
	Logprob float32
	Rank    int
}

// LLM is an open model. Its methods may be called from many goroutines; requests share steps.
type LLM struct{ engines *replicas.Router }

// Open loads the model and starts its ranks. Close must be called.
func Open(ctx context.Context, opt Options) (*LLM, error) {
	c := config.Default()
	c.Model.Path = opt.Model
	c.Model.MaxModelLen = opt.MaxModelLen
	c.Cache.MemoryBytes = opt.KVCacheMemoryBytes
	if opt.TensorParallelSize > 0 {
		c.Parallel.TensorParallelSize = opt.TensorParallelSize
	}
	if opt.PipelineParallelSize > 0 {
		c.Parallel.PipelineParallelSize = opt.PipelineParallelSize
	}
	if opt.DataParallelSize > 0 {
		c.Parallel.DataParallelSize = opt.DataParallelSize
	}
	if opt.DType != "" {
		c.Model.DType = opt.DType
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r, _, err := replicas.Open(ctx, engine.Options{Config: c, Log: opt.Log})
	if err != nil {
		return nil, err
	}
	return &LLM{engines: r}, nil
}

// Generate completes prompts together and returns the outputs in their order. The first error ends
// all.
func (l *LLM) Generate(ctx context.Context, prompts []string, p SamplingParams) ([]Output, error) {
	streams := make([]engine.Stream, 0, len(prompts))
	defer func() {
		for _, s := range streams {
			s.Close()
		}
	}()
	for i, text := range prompts {
		s, err := l.submit(ctx, text, p)
		if err != nil {
			return nil, fmt.Errorf("prompt %d: %w", i, err)
		}
		streams = append(streams, s)
	}
	out := make([]Output, len(streams))
	for i, s := range streams {
		var text []byte
		for {
			d, err := s.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("prompt %d: %w", i, err)
			}
			text = append(text, d.Text...)
			out[i].Tokens = append(out[i].Tokens, d.Tokens...)
			for _, l := range d.Logprobs {
				out[i].Logprobs = append(out[i].Logprobs, logprobsOf(l))
			}
			out[i].FinishReason, out[i].PromptTokens = d.Finish.String(), d.PromptTokens
		}
		out[i].Text = string(text)
	}
	return out, nil
}

func logprobsOf(l step.Logprobs) Logprobs {
	one := func(t step.TokenLogprob) TokenLogprob {
		return TokenLogprob{Token: t.Token, Logprob: t.Logprob, Rank: int(t.Rank)}
	}
	r := Logprobs{Token: one(l.Sampled)}
	for _, t := range l.Top {
		r.Top = append(r.Top, one(t))
	}
	return r
}

// Stream completes one prompt and yields its text as it becomes certain. An error is yielded last;
// leaving the loop aborts the request.
func (l *LLM) Stream(ctx context.Context, prompt string,
	p SamplingParams) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s, err := l.submit(ctx, prompt, p)
		if err != nil {
			yield("", err)
			return
		}
		defer s.Close()
		for {
			d, err := s.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", err)
				return
			}
			if len(d.Text) > 0 && !yield(string(d.Text), nil) {
				return
			}
		}
	}
}

// defaultMaxTokens is OpenAI's for completions.
const defaultMaxTokens = 16

func (l *LLM) submit(ctx context.Context, text string, p SamplingParams) (engine.Stream, error) {
	params, err := l.engines.Info().Resolve(p.overrides(), defaultMaxTokens)
	if err != nil {
		return nil, err
	}
	r := engine.NewRequest(l.engines.Info().Tokenizer.Encode(text, true), params)
	r.Stop = p.Stop
	return l.engines.Submit(ctx, r)
}

func (p *SamplingParams) overrides() *sample.Overrides {
	o := &sample.Overrides{IgnoreEOS: p.IgnoreEOS, Seed: rand.Uint64()}
	o.Temperature, o.TopP, o.MinP = wide(p.Temperature), wide(p.TopP), wide(p.MinP)
	o.TopK, o.LogprobTokens = p.TopK, p.LogprobTokenIDs
	if p.Logprobs != nil {
		o.Logprobs = new(int32(*p.Logprobs))
	}
	if p.MaxTokens != 0 {
		o.MaxTokens = &p.MaxTokens
	}
	if p.Seed != nil {
		o.Seed = *p.Seed
	}
	return o
}

func wide(v *float32) *float64 {
	if v == nil {
		return nil
	}
	w := float64(*v)
	return &w
}

// closeGrace is how long Close lets running requests finish.
const closeGrace = 5 * time.Second

// Close ends the ranks. Requests still running get a few seconds to finish.
func (l *LLM) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	return l.engines.Stop(ctx)
}

// RunWorker serves as a rank, and does not return, when the process was started as one by Open;
// otherwise it returns at once. Programs that open models with more than one rank call it first
// thing in main.
func RunWorker() { invited.Run(nil) }
