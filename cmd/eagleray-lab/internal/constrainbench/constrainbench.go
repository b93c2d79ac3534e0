// Package constrainbench measures constrained decoding over the schemas of MaskBench: what share of
// them compiles, whether their instances are judged rightly, and what every mask takes.
package constrainbench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/grammars"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Options say what is measured.
type Options struct {
	// Schemas is a directory of files in MaskBench's form: {"schema": …, "tests": [{"valid": …,
	// "data": …}]}.
	Schemas string
	// Tokenizer is a directory with a tokenizer.json.
	Tokenizer string
	// Every takes each so many-th file only.
	Every int
	// Vocab is the width of a mask in tokens, as the model pads its vocabulary; 0 is the
	// tokenizer's.
	Vocab int
	// AnyOrder lets the keys of objects stand in any order, not only in that of the schema.
	AnyOrder bool
}

// Quantiles are of durations, in microseconds.
type Quantiles struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P25   float64 `json:"p25"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Verdicts count instances by what the schema says of them and what the constraint does.
type Verdicts struct {
	ValidAccepted   int `json:"valid_accepted"`
	ValidRefused    int `json:"valid_refused"`
	InvalidRefused  int `json:"invalid_refused"`
	InvalidAccepted int `json:"invalid_accepted"`
	// Untokenized instances have text that the tokenizer does not give back.
	Untokenized int `json:"untokenized"`
}

// Report has the figures of one run.
type Report struct {
	Schemas  int            `json:"schemas"`
	Compiled int            `json:"compiled"`
	Share    float64        `json:"compiled_share"`
	Refused  map[string]int `json:"refused"`
	// Wrong are the schemas with an instance that is judged wrongly, Exhausted those with a mask
	// that took more than the limits allow.
	Wrong     []string  `json:"wrong"`
	Exhausted []string  `json:"exhausted"`
	Verdicts  Verdicts  `json:"verdicts"`
	Vocab     int       `json:"vocab"`
	Compile   Quantiles `json:"compile_us"`
	FirstMask Quantiles `json:"first_mask_us"`
	// Cold masks are those of the first time that an instance is gone through, Warm of the second,
	// with the tables of the first.
	Cold Quantiles `json:"cold_us"`
	Warm Quantiles `json:"warm_us"`
	// Slowest has the slowest masks, one of a schema at most, and the slowest compilations.
	Slowest []Slow `json:"slowest"`
	// Curves have the duration of each thousandth of the masks, for the plot.
	Curves struct {
		Cold []float64 `json:"cold_us"`
		Warm []float64 `json:"warm_us"`
	} `json:"curves"`
}

// Slow is something that took long.
type Slow struct {
	Schema string  `json:"schema"`
	What   string  `json:"what"`
	US     float64 `json:"us"`
}

type instance struct {
	Valid bool            `json:"valid"`
	Data  json.RawMessage `json:"data"`
}

type bench struct {
	anyOrder   bool
	tok        *tokenizer.Tokenizer
	vocabulary *constrain.Vocabulary
	mask       []uint32
	report     Report
	compile    []time.Duration
	first      []time.Duration
	cold       []time.Duration
	warm       []time.Duration
}

// Run measures.
func Run(o Options) (Report, error) {
	tok, err := tokenizer.Load(o.Tokenizer)
	if err != nil {
		return Report{}, fmt.Errorf("--tokenizer: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(o.Schemas, "*.json"))
	if err != nil || len(files) == 0 {
		return Report{}, fmt.Errorf("--schemas: no JSON files in %q", o.Schemas)
	}
	slices.Sort(files)
	b := bench{anyOrder: o.AnyOrder, tok: tok, vocabulary: grammars.Vocabulary(tok)}
	width := max(b.vocabulary.Words(), (o.Vocab+31)/32)
	b.mask = make([]uint32, width)
	b.report.Refused, b.report.Vocab = map[string]int{}, 32*width
	b.report.Wrong, b.report.Exhausted = []string{}, []string{}
	for i := 0; i < len(files); i += max(o.Every, 1) {
		if err := b.file(files[i]); err != nil {
			return Report{}, fmt.Errorf("%s: %w", files[i], err)
		}
	}
	r := &b.report
	r.Share = float64(r.Compiled) / float64(max(r.Schemas, 1))
	r.Compile, r.FirstMask = quantiles(b.compile), quantiles(b.first)
	r.Cold, r.Warm = quantiles(b.cold), quantiles(b.warm)
	slices.SortFunc(r.Slowest, func(a, b Slow) int { return cmp.Compare(b.US, a.US) })
	r.Slowest = r.Slowest[:min(len(r.Slowest), 20)]
	r.Curves.Cold, r.Curves.Warm = curve(b.cold), curve(b.warm)
	return *r, nil
}

func (b *bench) file(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f struct {
		Schema json.RawMessage `json:"schema"`
		Tests  []instance      `json:"tests"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	name := strings.TrimSuffix(filepath.Base(path), ".json")
	b.report.Schemas++
	spec := constrain.Spec{Kind: constrain.JSONSchema, Text: string(f.Schema),
		AnyOrder: b.anyOrder}
	began := time.Now()
	c, err := constrain.Compile(spec, b.vocabulary, constrain.Limits{})
	compiled := time.Since(began)
	var refused *constrain.Error
	switch {
	case errors.As(err, &refused):
		b.report.Refused[refused.Code]++
		return nil
	case err != nil:
		return err
	}
	b.report.Compiled++
	b.compile = append(b.compile, compiled)
	defer func(cold, warm int) {
		b.slow(name, "compile", []time.Duration{compiled})
		b.slow(name, "cold mask", b.cold[cold:])
		b.slow(name, "warm mask", b.warm[warm:])
	}(len(b.cold), len(b.warm))
	m := c.Matcher()
	m.Mask(b.mask)
	b.first = append(b.first, time.Since(began))
	if m.Exhausted() {
		b.report.Exhausted = append(b.report.Exhausted, name)
		return nil
	}
	for i, t := range f.Tests {
		text, err := respace(t.Data)
		if err != nil {
			return err
		}
		ids := b.tok.Encode(text, false)
		if b.tok.Decode(ids, false) != text {
			b.report.Verdicts.Untokenized++
			continue
		}
		accepted := b.through(c.Matcher(), ids, t.Valid, &b.cold)
		if again := b.through(c.Matcher(), ids, t.Valid, &b.warm); again != accepted {
			// It ran out of its budget, and had less to do the second time.
			b.report.Exhausted = append(b.report.Exhausted, fmt.Sprintf("%s/tests/%d", name, i))
		}
		if b.judge(accepted, t.Valid); accepted != t.Valid {
			b.report.Wrong = append(b.report.Wrong, fmt.Sprintf("%s/tests/%d", name, i))
		}
	}
	return nil
}

// slow notes the longest of durations, if it is longer than most.
func (b *bench) slow(name, what string, took []time.Duration) {
	const long = time.Millisecond
	if len(took) == 0 {
		return
	}
	if d := slices.Max(took); d > long {
		b.report.Slowest = append(b.report.Slowest, Slow{name, what, us(d)})
	}
}

// through goes through an instance, with a mask before every token of a valid one, and says whether
// the constraint takes it.
func (b *bench) through(m *constrain.Matcher, ids []int32, masked bool,
	took *[]time.Duration) bool {
	for _, id := range ids {
		if masked {
			began := time.Now()
			m.Mask(b.mask)
			*took = append(*took, time.Since(began))
			if b.mask[id>>5]>>(id&31)&1 == 0 {
				return false
			}
		}
		if !m.Accept(id) {
			return false
		}
	}
	return m.Accepting()
}

func (b *bench) judge(accepted, valid bool) {
	v := &b.report.Verdicts
	switch {
	case accepted && valid:
		v.ValidAccepted++
	case valid:
		v.ValidRefused++
	case accepted:
		v.InvalidAccepted++
	default:
		v.InvalidRefused++
	}
}

func quantiles(d []time.Duration) Quantiles {
	if len(d) == 0 {
		return Quantiles{}
	}
	slices.Sort(d)
	at := func(q float64) float64 { return us(d[int(q*float64(len(d)-1))]) }
	var sum time.Duration
	for _, x := range d {
		sum += x
	}
	return Quantiles{Count: len(d), Mean: us(sum) / float64(len(d)), P25: at(.25), P50: at(.5),
		P90: at(.9), P99: at(.99), P999: at(.999), Max: us(d[len(d)-1])}
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// curve has the duration of each thousandth of sorted durations.
func curve(d []time.Duration) []float64 {
	if len(d) == 0 {
		return nil
	}
	out := make([]float64, 1001)
	for i := range out {
		out[i] = us(d[i*(len(d)-1)/1000])
	}
	return out
}

// respace writes a JSON text as Python's json.dumps does with ensure_ascii=False: a space after
// every comma and colon, and keys as they stand.
func respace(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var out strings.Builder
	var open []json.Delim
	var had []int
	for {
		t, err := d.Token()
		if err == io.EOF {
			return out.String(), nil
		}
		if err != nil {
			return "", err
		}
		delim, _ := t.(json.Delim)
		closing := delim == '}' || delim == ']'
		if n := len(open); n > 0 && !closing {
			switch {
			case open[n-1] == '{' && had[n-1]%2 == 1:
				out.WriteString(": ")
			case had[n-1] > 0:
				out.WriteString(", ")
			}
			had[n-1]++
		}
		switch v := t.(type) {
		case json.Delim:
			out.WriteString(v.String())
			if closing {
				open, had = open[:len(open)-1], had[:len(had)-1]
			} else {
				open, had = append(open, v), append(had, 0)
			}
		case string:
			out.WriteString(`"` + regex.JSONSpell(v) + `"`)
		case nil:
			out.WriteString("null")
		default:
			fmt.Fprint(&out, v)
		}
	}
}
