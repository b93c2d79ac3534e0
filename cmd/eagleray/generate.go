package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// sampling are the flags of a request made on the command line.
type sampling struct {
	maxTokens         int
	temperature, topP float64
	topK              int
	stop              []string
	ignoreEOS         bool
}

func (s *sampling) flags(f *pflag.FlagSet, maxTokens int) {
	f.IntVar(&s.maxTokens, "max-tokens", maxTokens,
		"most tokens of output; 0 is what is left of the context "+
			"(the model's own default goes before this one)")
	f.Float64Var(&s.temperature, "temperature", 0, "0 is greedy (default: the model's)")
	f.Float64Var(&s.topP, "top-p", 1, "keep the most likely tokens up to this "+
		"probability (default: the model's)")
	f.IntVar(&s.topK, "top-k", 0, "keep this many of the most likely tokens; 0 is "+
		"all (default: the model's)")
	f.StringArrayVar(&s.stop, "stop", nil, "text that ends the output; may be given several times")
	f.BoolVar(&s.ignoreEOS, "ignore-eos", false, "go on after the model's end-of-sequence token")
}

// validate refuses values no request could have; each error names its flag.
func (s *sampling) validate() error {
	switch {
	case s.maxTokens < 0:
		return cli.UsageError("--max-tokens %d is less than 0", s.maxTokens)
	case !(s.temperature >= 0 && s.temperature <= math.MaxFloat32):
		return cli.UsageError("--temperature %g is not 0 or more", s.temperature)
	case !(s.topP > 0 && s.topP <= 1):
		return cli.UsageError("--top-p %g is not within (0, 1]", s.topP)
	case s.topK < 0 || s.topK > math.MaxInt32:
		return cli.UsageError("--top-k %d is not 0 or more", s.topK)
	case slices.Contains(s.stop, ""):
		return cli.UsageError("--stop is empty")
	}
	return nil
}

// generation is what generate is asked for beside the engine's flags.
type generation struct {
	sampling sampling
	// system is the first message of each conversation; raw prompts are in none.
	system      string
	raw, asJSON bool
	lora        oneAdapter
}

// newGenerate answers prompts of the command line, or each line of standard input.
func newGenerate() *cobra.Command {
	cfg := config.Default()
	var g generation
	c := &cobra.Command{
		Use:   "generate [PROMPT...]",
		Short: "Answer prompts, or each line of standard input",
		Long: `generate answers each prompt and prints the outputs in order, as they come. A model with a
chat template is asked as in a chat; --raw completes the bare text instead, as happens without a
template. Without arguments each line of standard input is a prompt; "-" is all of it as one
prompt. All run in one batch.

  eagleray generate "What does os.Open do?"
  eagleray generate --model ./Qwen3-0.6B --system "Answer in one word." "The capital of France?"
  eagleray generate --model ./Qwen3-0.6B --raw --max-tokens 32 "The capital of France is"
  eagleray generate - < question.txt
  eagleray generate --json < prompts.txt > outputs.jsonl

All arguments are prompts: the model is --model, and without it the built-in one. A first argument
that is the path or the name of a model is refused then, unless it stands behind "--".`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := errors.Join(g.lora.apply(&cfg), cfg.Validate(),
				g.sampling.validate()); err != nil {
				return err
			}
			if g.raw && g.system != "" {
				return cli.UsageError("--system: a raw prompt is in no conversation")
			}
			if cfg.Model.Path == "" && c.ArgsLenAtDash() != 0 {
				if err := refuseModel(args); err != nil {
					return err
				}
			}
			printWarnings(cfg.Warnings)
			prompts, err := readPrompts(args, os.Stdin)
			if err != nil {
				return err
			}
			return g.run(c.Context(), cfg, c.Flags(), prompts)
		},
	}
	f := c.Flags()
	cli.ModelFlag(f, &cfg)
	f.BoolVar(&g.asJSON, "json", false,
		"print one JSON object a prompt: prompt, text, tokens, finish_reason")
	f.BoolVar(&g.raw, "raw", false, "complete the bare prompt, without the chat template")
	f.StringVar(&g.system, "system", "",
		"what the model is told before each prompt (--system-prompt is the same)")
	g.lora.flag(f)
	cfg.EngineFlags(f)
	g.sampling.flags(f, 128)
	cli.ConfigFlag(c)
	return c
}

// refuseModel refuses prompts of which the first one is a model, as it is for the other commands:
// the built-in model would answer its name. What is a path, or the name of a repository, and
// nothing else, is one.
func refuseModel(args []string) error {
	if len(args) == 0 || !namesModel(args[0]) {
		return nil
	}
	return cli.UsageError("%q is a model where prompts are expected: say --model %[1]s, or "+
		"\"-- %[1]s\" if it is a prompt", args[0])
}

// repository is the form of a repository's name, with a tag or without.
var repository = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$`)

// namesModel says that a word is a folder or a file of weights that is there, is written as a path
// or an address, or as the name of a repository.
func namesModel(word string) bool {
	if open.IsFolder(word) || repository.MatchString(word) {
		return true
	}
	if strings.ContainsFunc(word, unicode.IsSpace) {
		return false
	}
	for _, start := range []string{"./", "../", "/", "~/", "https://", "http://", "hf.co/",
		"hf://", "s3://", "gs://"} {
		if strings.HasPrefix(word, start) && len(word) > len(start) {
			return true
		}
	}
	return strings.HasSuffix(word, ".gguf") || strings.HasSuffix(word, ".safetensors")
}

// readPrompts takes the prompts from the arguments, of which "-" stands for all of standard input;
// without any, each line of it is one.
func readPrompts(args []string, in *os.File) (prompts []string, err error) {
	switch {
	case len(args) == 0:
		if term.IsTerminal(int(in.Fd())) {
			fmt.Fprintln(os.Stderr, "prompts, one a line; Ctrl-D ends them")
		}
		prompts, err = readLines(in)
		if err == nil && len(prompts) == 0 {
			return nil, cli.UsageError("no prompt: standard input is empty (see eagleray " +
				"generate --help)")
		}
	case slices.Contains(args, "-"):
		var all []byte
		all, err = io.ReadAll(in)
		prompts = slices.Clone(args)
		prompts[slices.Index(args, "-")] = strings.TrimRight(string(all), "\n")
	default:
		return args, nil
	}
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return prompts, nil
}

func readLines(r io.Reader) ([]string, error) {
	var lines []string
	in := bufio.NewScanner(r)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	return lines, in.Err()
}

// openEngine starts an engine for a command that ends with it, showing progress on standard error.
func openEngine(ctx context.Context, cfg config.Config) (*replicas.Router, error) {
	shown := newProgress(os.Stderr)
	defer shown.end()
	events := status.Tee(shown.listen, func(e status.Event) {
		if _, ok := e.(status.HubLookup); ok {
			fmt.Fprintln(os.Stderr, e)
		}
	})
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: logLevel()}))
	logRayJob(log)
	e, _, err := replicas.Open(ctx, engine.Options{Config: cfg, Events: events, Log: log,
		Version: version()})
	return e, err
}

// awaitStored waits until the next start has what it finds of this one: with --weights-cache.
func awaitStored(ctx context.Context, e *replicas.Router) {
	said := time.AfterFunc(time.Second, func() {
		fmt.Fprintln(os.Stderr, "packed weights are being stored for the next start; Ctrl-C ends "+
			"that")
	})
	defer said.Stop()
	e.AwaitStored(ctx)
}

// run opens the model, submits all prompts and prints what comes.
func (g *generation) run(ctx context.Context, cfg config.Config, given *pflag.FlagSet,
	prompts []string) (err error) {
	if cfg.Model.SkipTokenizerInit {
		return cli.UsageError("--skip-tokenizer-init: generate needs the tokenizer")
	}
	e, err := openAsking(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop(context.WithoutCancel(ctx))) }()
	encode, err := g.encoder(cfg, e.Router)
	if err != nil {
		return err
	}
	streams := make([]engine.Stream, 0, len(prompts))
	defer func() {
		for _, x := range streams {
			x.Close()
		}
	}()
	for i, text := range prompts {
		ids, err := encode(text)
		if err != nil {
			return fmt.Errorf("prompt %d: %w", i+1, err)
		}
		r, err := g.sampling.request(e.Info(), given, ids)
		if err != nil {
			return err
		}
		stream, err := e.Submit(ctx, r)
		if err != nil {
			return fmt.Errorf("prompt %d: %w", i+1, err)
		}
		streams = append(streams, stream)
	}
	out := bufio.NewWriter(os.Stdout)
	for i, stream := range streams {
		if err := printOutput(ctx, out, prompts[i], stream, g.asJSON); err != nil {
			return fmt.Errorf("prompt %d: %w", i+1, err)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	awaitStored(ctx, e.Router)
	return nil
}

// encoder is what makes token ids of a prompt: the chat template where there is one.
func (g *generation) encoder(cfg config.Config,
	e *replicas.Router) (func(prompt string) ([]int32, error), error) {
	if g.raw || e.Info().Template == nil {
		if g.system != "" {
			return nil, cli.UsageError("--system: the model has no chat template to put it in")
		}
		return func(prompt string) ([]int32, error) {
			return e.Info().Tokenizer.Encode(prompt, true), nil
		}, nil
	}
	service, err := generate.New(generate.Options{Info: e.Info(), Engine: e, Config: &cfg})
	if err != nil {
		return nil, err
	}
	return func(prompt string) ([]int32, error) {
		var talk []generate.Message
		if g.system != "" {
			talk = append(talk, generate.Message{Role: "system", Content: g.system})
		}
		return service.ChatPrompt(append(talk, generate.Message{Role: "user", Content: prompt}))
	}, nil
}

// request builds a request from the flags that were given and the model's defaults.
func (s *sampling) request(info *open.Info, given *pflag.FlagSet,
	ids []int32) (*engine.Request, error) {
	o := &sample.Overrides{IgnoreEOS: s.ignoreEOS, Seed: rand.Uint64()}
	if given.Changed("temperature") {
		o.Temperature = &s.temperature
	}
	if given.Changed("top-p") {
		o.TopP = &s.topP
	}
	if given.Changed("top-k") {
		o.TopK = &s.topK
	}
	if given.Changed("max-tokens") {
		o.MaxTokens = &s.maxTokens
		if s.maxTokens == 0 {
			o.MaxTokens = &info.MaxModelLen // cut to the room that the prompt leaves
		}
	}
	if given.Changed("seed") {
		o.Seed, _ = given.GetUint64("seed")
	}
	p, err := info.Resolve(o, s.maxTokens)
	r := engine.NewRequest(ids, p)
	r.Stop = s.stop
	return r, err
}

// output is one line of generate --json.
type output struct {
	Prompt       string  `json:"prompt"`
	Text         string  `json:"text"`
	Tokens       []int32 `json:"tokens"`
	FinishReason string  `json:"finish_reason"`
}

func printOutput(ctx context.Context, w *bufio.Writer, prompt string, s engine.Stream,
	asJSON bool) error {
	o := output{Prompt: prompt}
	var text []byte
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		text = append(text, d.Text...)
		o.Tokens = append(o.Tokens, d.Tokens...)
		o.FinishReason = d.Finish.String()
		if !asJSON {
			w.Write(d.Text)
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	if asJSON {
		o.Text = string(text)
		return json.NewEncoder(w).Encode(o)
	}
	return w.WriteByte('\n')
}
