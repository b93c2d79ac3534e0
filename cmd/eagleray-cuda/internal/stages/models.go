package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// goldens is a fixture's goldens.json: what transformers computes in float32 from the bfloat16
// weights.
type goldens struct {
	Prompts []prompt `json:"prompts"`
	// BF16Error is what rounding activations to bfloat16 causes in the reference itself, in
	// standard deviations of the logits.
	BF16Error float64 `json:"bf16_activation_max_error"`
}

type prompt struct {
	IDs []int32 `json:"ids"`
	// Top is logits of the last row, by their tokens; Greedy the tokens that follow, Margins how
	// far each of them is before the second best.
	Top     [][2]float64 `json:"last_logits_top"`
	Greedy  []int32      `json:"greedy"`
	Margins []float64    `json:"margins"`
	Std     float64      `json:"std"`
}

// agreement is what a family came to.
type agreement struct {
	// Tokens were equal of Wanted; Left is how many prompts were left at a near tie, Wrong how many
	// had another token where there was none.
	Tokens, Wanted, Left, Wrong int
	// Worst is the largest error of a logit, and Limit what it may be, in standard deviations.
	Worst, Limit float64
	dtype        compute.DType
	mixture      bool
}

// failed says whether a family is not transformers'. Rounding activations moves the choice of a
// mixture's router, so that only float32 says something of one.
func (a *agreement) failed() bool {
	if a.mixture && a.dtype != compute.Float32 {
		return false
	}
	return a.Wrong > 0 || !(a.Worst <= a.Limit)
}

// models holds each fixture to transformers, in float32 and in bfloat16: greedy tokens are equal,
// but in bfloat16 where both best are so near that rounding activations decides.
func (r *run) models(ctx context.Context) error {
	families, err := r.families()
	if err != nil {
		return err
	}
	var all agreement
	run := 0
	for _, name := range families {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, skipped, err := r.family(ctx, name)
		if skipped != "" {
			r.report(Row{Name: name, Note: "skipped: " + skipped, Listed: true})
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		run++
		for _, a := range list {
			all.Tokens, all.Wanted, all.Left = all.Tokens+a.Tokens, all.Wanted+a.Wanted,
				all.Left+a.Left
			r.report(Row{Name: name + ", " + a.dtype.String(), Unit: "std of logits",
				Ours: figure(a.Worst), Floor: figure(a.Limit), Failed: a.failed(), Listed: true,
				Detail: a, Note: fmt.Sprintf("%d of %d tokens equal, %d prompts left at a near "+
					"tie, %d wrong; ours is the largest error of a logit, floor its limit",
					a.Tokens, a.Wanted, a.Left, a.Wrong)})
		}
	}
	r.summary = fmt.Sprintf("%d families, %d of %d tokens equal, %d prompts left at a near tie",
		run, all.Tokens, all.Wanted, all.Left)
	if run == 0 {
		return fmt.Errorf("no model with goldens.json in %s", r.Models)
	}
	return nil
}

// families are the names of the fixtures to run.
func (r *run) families() ([]string, error) {
	if r.Models == "" {
		return nil, errors.New("no folder of models was given (--models)")
	}
	if len(r.Families) > 0 {
		return r.Families, nil
	}
	if r.tiny() {
		return []string{"llama-tiny", "qwen3moe-tiny"}, nil
	}
	entries, err := os.ReadDir(r.Models)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		_, err := os.Stat(filepath.Join(r.Models, e.Name(), "goldens.json"))
		if e.IsDir() && err == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// family runs a fixture, or says why not.
func (r *run) family(ctx context.Context, name string) (list []agreement, skipped string,
	err error) {
	dir := filepath.Join(r.Models, name)
	var g goldens
	raw, err := os.ReadFile(filepath.Join(dir, "goldens.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "no goldens.json", nil
	}
	if err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		return nil, "", fmt.Errorf("goldens.json: %w", err)
	}
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		return nil, "", err
	}
	if raw, err = folder.ReadFile("config.json"); err != nil {
		return nil, "", err
	}
	cfg, err := model.ReadConfig(raw)
	switch {
	case err != nil:
		return nil, "", err
	case cfg.Pools():
		return nil, "it is no causal language model", nil
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		return nil, "", err
	}
	defer weights.Close()
	for _, dtype := range r.dtypes() {
		a := agreement{dtype: dtype, mixture: cfg.Experts() > 0}
		if err := r.agree(ctx, cfg, weights, &g, &a); err != nil {
			return nil, "", err
		}
		list = append(list, a)
	}
	return list, "", nil
}

// dtypes are what models run in. A machine for PTX has no time for float32.
func (r *run) dtypes() []compute.DType {
	if r.tiny() {
		return []compute.DType{compute.BFloat16}
	}
	return []compute.DType{compute.Float32, compute.BFloat16}
}

// exactly is how far logits of float32 may be from transformers', in standard deviations.
const exactly = 1e-4

// agree runs the prompts of a fixture, of which the machine has time for the shortest. Where rotary
// factors depend on the longest sequence that is served, transformers has those of each prompt's.
func (r *run) agree(ctx context.Context, cfg *model.Config, weights *checkpoint.Checkpoint,
	g *goldens, a *agreement) error {
	prompts, greedy := g.Prompts, math.MaxInt
	if r.tiny() {
		const few = 8
		shortest := slices.MinFunc(prompts, func(p, q prompt) int {
			return len(p.IDs) - len(q.IDs)
		})
		prompts, greedy = []prompt{shortest}, few
	}
	a.Limit = 2 * g.BF16Error
	if a.dtype == compute.Float32 {
		a.Limit = exactly
	}
	if len(cfg.Rope.LongFactor) == 0 {
		return r.agreeUpTo(ctx, cfg, weights, prompts, greedy, a)
	}
	var short, long []prompt
	for _, p := range prompts {
		switch original := cfg.Rope.OriginalMaxPositions; {
		case len(p.IDs) > original:
			long = append(long, p)
		case len(p.IDs)+len(p.Greedy) <= original:
			short = append(short, p)
		}
	}
	for _, some := range [][]prompt{short, long} {
		if err := r.agreeUpTo(ctx, cfg, weights, some, greedy, a); err != nil {
			return err
		}
	}
	return nil
}

// agreeUpTo runs prompts, the longest of which is the longest sequence that is served.
func (r *run) agreeUpTo(ctx context.Context, cfg *model.Config, weights *checkpoint.Checkpoint,
	prompts []prompt, greedy int, a *agreement) (err error) {
	longest := 0
	for _, p := range prompts {
		longest = max(longest, len(p.IDs)+len(p.Greedy))
	}
	if longest == 0 {
		return nil
	}
	cfg.Serve(longest)
	s, err := r.sessionOf(a.dtype, a.dtype, cfg, model.FromCheckpoint(weights), 1, longest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for i := range prompts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.prompt(s, &prompts[i], greedy); err != nil {
			return err
		}
	}
	return nil
}

// prompt continues a prompt until a token differs.
func (a *agreement) prompt(s *session, p *prompt, greedy int) error {
	rows, err := s.logits(piece{tokens: p.IDs})
	if err != nil {
		return err
	}
	last := rows[len(rows)-1]
	for _, top := range p.Top {
		e := math.Abs(float64(last[int(top[0])])-top[1]) / p.Std
		if math.IsNaN(e) {
			e = math.MaxFloat64 // JSON has no NaN
		}
		a.Worst = max(a.Worst, e)
	}
	want := p.Greedy[:min(greedy, len(p.Greedy))]
	a.Wanted += len(want)
	at := len(p.IDs)
	for k, token := range want {
		if got := greatest(last); got != token {
			if p.Margins[k] < a.Limit*p.Std {
				a.Left++
			} else {
				a.Wrong++
			}
			return nil
		}
		a.Tokens++
		if rows, err = s.logits(piece{start: at, tokens: []int32{token}}); err != nil {
			return err
		}
		at++
		last = rows[0]
	}
	return nil
}

// greatest is the place of the greatest number, the first of equals.
func greatest(v []float32) int32 {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return int32(best)
}
