package open

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Options configure Resolve. Config is needed.
type Options struct {
	// Config is written to where the model is the built-in one, or is called by another of its
	// names (see hub.Locate).
	Config *config.Config
	// Log is nil for none, Events, too.
	Log    *slog.Logger
	Events status.Listener
	// Null, unless it is nil, makes ranks that compute nothing.
	Null *Null
	// Bounds are those of this machine's memory; nil reads them.
	Bounds func() memory.Bounds
	// Elsewhere says that another machine has the model's folders, for Check.
	Elsewhere bool
	// LeftAlone is how long files must have been left alone before they are adopted; 0 is two
	// seconds.
	LeftAlone time.Duration
}

// ModelError says that the model is not there, or is not one that can be opened as it is asked for:
// what is found before anything starts.
type ModelError struct{ Err error }

func (e *ModelError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ModelError) Unwrap() error { return e.Err }

// resolver makes a Spec, step by step.
type resolver struct {
	*Spec
	ctx    context.Context
	log    *slog.Logger
	events status.Listener
	read   func() memory.Bounds
	// leftAlone is that of the options.
	leftAlone time.Duration
	// poolOverrides are the members of --hf-overrides that say how a model pools.
	poolOverrides map[string]json.RawMessage
	// pinErr is why the files are not held.
	pinErr error
	// probe asks what GPUs this machine has.
	probe func(ctx context.Context) (*gpus.Found, error)
	// checks says that nothing starts after.
	checks bool
}

func newResolver(ctx context.Context, opt *Options) *resolver {
	r := &resolver{Spec: &Spec{Config: opt.Config, Null: opt.Null}, ctx: ctx, log: opt.Log,
		events: opt.Events, read: opt.Bounds, probe: gpus.Probe,
		leftAlone: cmp.Or(opt.LeftAlone, leftAlone)}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.read == nil {
		r.read = machine.Memory
	}
	if m := &r.Config.Model; m.Path == builtin.Name && !IsFolder(m.Path) {
		m.Path = "" // also by its name
	}
	return r
}

// Resolve finds the model, downloading it where it is a Hub repo, holds its files and reads what
// they say, divides it among ranks, and plans the memory. Errors name the flag or file at fault;
// but for the end of ctx they are a *ModelError.
func Resolve(ctx context.Context, opt Options) (*Spec, error) {
	r := newResolver(ctx, &opt)
	for _, f := range []func() error{r.locate, r.resolve, r.pinFiles, r.readModel, r.readDraft,
		r.checkWeights, r.divide, r.readTokenizer, r.readGenerationConfig, r.readPooling,
		r.readClasses, r.plan} {
		if err := f(); err != nil {
			err = errors.Join(err, r.Files.Release())
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, &ModelError{err}
		}
	}
	if p := r.Info.Pooling; r.Files != nil && p != nil && (p.Classes != nil || len(p.Dense) > 0) {
		r.Files.fixed = "the head of a classifier, or after what is pooled, is in the driver"
	}
	return r.Spec, nil
}

// Checked is what Check has looked at.
type Checked struct {
	// Plan is that of this machine's memory; nil for a model that is in no folder of it.
	Plan *memory.Plan
	// What are the parts that were read, and found to be right together, in words.
	What []string
	// Left are those that were not looked at, with the reason.
	Left []string
}

// Check finds what Resolve would find wrong with the flags and with the model's files, and plans
// the memory of this machine: the plan is there, too, when the error is a *memory.Misfit. A model
// of the Hub, or of another machine, is not looked at, and has no plan.
func Check(ctx context.Context, opt Options) (Checked, error) {
	r := newResolver(ctx, &opt)
	r.checks = true
	if err := r.locate(); err != nil {
		return Checked{}, err
	}
	c := Checked{What: []string{"flags"}}
	for _, path := range []string{r.Config.Model.Path, r.Config.Model.Tokenizer,
		r.Config.Speculative.Model} {
		switch {
		case path == "" || path == builtin.Name || IsFolder(path):
		case hub.IsPath(path) && !opt.Elsewhere:
			_, err := hub.Resolve(ctx, path, hub.Options{})
			return c, err
		default:
			left := fmt.Sprintf("files of %q, which is no folder here", path)
			if !hub.IsPath(path) {
				left += " (eagleray pull " + path + " fetches them)"
			}
			c.Left = append(c.Left, left)
		}
	}
	if len(c.Left) > 0 {
		return c, nil
	}
	c.Left = []string{"values of the weights"}
	for _, s := range []struct {
		do   func() error
		what func() string
	}{
		{r.resolve, nil},
		{r.readModel, func() string {
			return fmt.Sprintf("config.json (%s, %s, %d positions)", r.Model.ModelType,
				r.Info.DType, r.Info.MaxModelLen)
		}},
		{r.readDraft, func() string {
			if r.draft == nil {
				return ""
			}
			return "draft model"
		}},
		{r.checkWeights, func() string {
			if r.Config.Model.LoadFormat == "dummy" {
				return ""
			}
			if q := r.Model.Quantization; q != nil {
				return fmt.Sprintf("names, shapes and scales of the weights (%s)", q.Method)
			}
			return "names and shapes of the weights"
		}},
		{r.divide, func() string {
			return fmt.Sprintf("layout (%d x %s)", r.Engines(),
				r.Info.Layout)
		}},
		{r.readTokenizer, func() string {
			if r.Info.Tokenizer == nil {
				return ""
			}
			return "tokenizer and chat template"
		}},
		{r.readGenerationConfig, func() string { return "generation_config.json" }},
		{r.readPooling, func() string {
			if r.Info.Pooling == nil {
				return ""
			}
			return "pooling"
		}},
		{r.plan, func() string { return "memory" }},
	} {
		err := s.do()
		c.Plan = r.Planned
		if err != nil {
			return c, err
		}
		if s.what == nil {
			continue
		}
		if what := s.what(); what != "" {
			c.What = append(c.What, what)
		}
	}
	return c, nil
}

// IsFolder says that a path is a folder of this machine, or a file of GGUF.
func IsFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (info.IsDir() || checkpoint.IsGGUF(path))
}

func (r *resolver) progress(rank int, phase string, done, total int64) {
	r.events.Emit(status.Progress{Rank: rank, Phase: phase, Done: done, Total: total})
}
