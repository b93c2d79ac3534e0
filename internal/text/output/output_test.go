package output

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// vector is one answer of testdata and what it says.
type vector struct {
	ID         string      `json:"id"`
	Parser     string      `json:"p"`
	Thinking   string      `json:"t"`
	Out        string      `json:"out"`
	Calls      [][2]string `json:"calls"`
	Content    string      `json:"content"`
	Reasoning  string      `json:"reasoning"`
	Open       bool        `json:"open_think"`
	Closed     bool        `json:"closed_think"`
	IDs        []*string   `json:"ids"`
	ToolChoice string      `json:"tool_choice"`
	Parallel   *bool       `json:"parallel_tool_calls"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	var list []vector
	for _, name := range []string{"answers", "families"} {
		raw, err := os.ReadFile("testdata/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			var v vector
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			list = append(list, v)
		}
	}
	return list
}

// options are how the answer is read.
func (v *vector) options(t testing.TB) Options {
	t.Helper()
	o := Options{Tools: FormatNamed(v.Parser), Reasoning: ThinkingNamed("qwen3"), Types: types,
		ID: func() string { return "made" }, Single: v.Parallel != nil && !*v.Parallel}
	switch {
	case v.Thinking != "":
		o.Reasoning = ThinkingNamed(v.Thinking)
	case v.Parser == "qwen3":
		o.Tools = FormatNamed("hermes")
	case v.Parser == "mistral":
		o.Reasoning = ThinkingNamed("mistral")
	case o.Tools.layout != nil:
		o.Reasoning = thinkingWith(o.Tools)
	case strings.HasPrefix(v.Parser, "deepseek"):
		o.Reasoning = ThinkingNamed("deepseek_v3")
	}
	if o.Tools == nil || o.Reasoning == nil {
		t.Fatalf("%s: no parser %s", v.ID, v.Parser)
	}
	switch {
	case v.Open:
		o.State = Open
	case v.Closed:
		o.State = Closed
	}
	if v.ToolChoice == "none" {
		o.Tools = nil
	}
	return o
}

// types are those of the functions in the answers.
func types(function, parameter string) typed.Types {
	return map[string]typed.Types{"get_weather.city": typed.String,
		"get_weather.days": typed.Number,
		"save.zip":         typed.String, "save.code": typed.String, "save.meta": typed.Object,
		"save.on": typed.Bool, "save.tags": typed.Array, "save.r": typed.Number,
		"save.any": typed.String | typed.Number | typed.Null}[function+"."+parameter]
}

// folded is an answer joined from its parts.
type folded struct {
	content, reasoning string
	calls              [][2]string
	ids                []string
	// said is reasoning and content in the order in which they came.
	said string
}

func (f *folded) add(t testing.TB, parts []Part) {
	t.Helper()
	for _, p := range parts {
		if p.Kind <= Content {
			f.said += p.Text
		}
		switch p.Kind {
		case Reasoning:
			f.reasoning += p.Text
		case Content:
			f.content += p.Text
		case Call:
			if p.Index != len(f.calls) || p.Name == "" || p.ID == "" || p.Text != "" {
				t.Fatalf("call %d begins with %+v", len(f.calls), p)
			}
			f.calls = append(f.calls, [2]string{p.Name})
			f.ids = append(f.ids, p.ID)
		case Arguments:
			if p.Index != len(f.calls)-1 {
				t.Fatalf("arguments of call %d after %d calls", p.Index, len(f.calls))
			}
			f.calls[p.Index][1] += p.Text
		}
		if p.Kind != Call && p.Text == "" {
			t.Fatalf("a part without text: %+v", p)
		}
		if !utf8.ValidString(p.Text) {
			t.Fatalf("half a character in %+v", p)
		}
	}
}

// String shows all of the answer, so that equal texts are equal answers.
func (f *folded) String() string {
	b, err := json.Marshal([]any{f.content, f.reasoning, f.calls, f.ids})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// fold reads an answer in the given pieces.
func fold(t testing.TB, o Options, pieces ...string) *folded {
	t.Helper()
	var f folded
	p := New(o)
	defer p.Close()
	for _, s := range pieces {
		f.add(t, p.Push(s))
	}
	f.add(t, p.Close())
	if late := append(p.Push("late"), p.Close()...); late != nil {
		t.Fatalf("parts after the end: %v", late)
	}
	return &f
}

// TestVectors reads the answers of testdata whole, a character at a time, in two
// pieces at every cut, and in random pieces.
func TestVectors(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for _, v := range vectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			o := v.options(t)
			whole := fold(t, o, v.Out)
			want := folded{content: v.Content, reasoning: v.Reasoning, calls: v.Calls}
			for i := range v.Calls {
				id := "made"
				if i < len(v.IDs) && v.IDs[i] != nil {
					id = *v.IDs[i]
				}
				want.ids = append(want.ids, id)
			}
			if whole.String() != want.String() {
				t.Errorf("reads\n%s\nas\n%s\nwant\n%s", v.Out, whole, &want)
			}
			same := func(pieces ...string) {
				t.Helper()
				if got := fold(t, o, pieces...); got.String() != whole.String() {
					t.Fatalf("in pieces %q\n%s\nwhole\n%s", pieces, got, whole)
				}
			}
			same(strings.Split(v.Out, "")...)
			for cut := range v.Out {
				same(v.Out[:cut], v.Out[cut:])
			}
			for range 50 {
				same(randomPieces(dice, v.Out)...)
			}
		})
	}
}

// randomPieces cuts a text between characters.
func randomPieces(dice *rand.Rand, text string) []string {
	var list []string
	last := 0
	for cut := range text {
		if cut > 0 && dice.IntN(6) == 0 {
			list = append(list, text[last:cut])
			last = cut
		}
	}
	return append(list, text[last:])
}

// TestDetect: templates show their family, the special before the general.
func TestDetect(t *testing.T) {
	for _, tt := range []struct{ template, format, thinking string }{
		{"<tool_call>{\"name\": …</tool_call> <think></think>", "hermes", "qwen3"},
		{"<tool_call><function=f><parameter=x></tool_call>", "qwen3_coder", ""},
		{"<tool_call>f<arg_key>x</arg_key></tool_call></think>", "glm45", "qwen3"},
		{"<｜Assistant｜></think><｜tool▁calls▁begin｜>```json", "deepseek_v3", "deepseek_r1"},
		{"<｜Assistant｜></think><｜tool▁calls▁begin｜>", "deepseek_v31", "deepseek_r1"},
		{"[TOOL_CALLS] [THINK]", "mistral", "mistral"},
		{"<|turn>model <|channel>thought <channel|> <|tool_call>call:", "gemma4", "gemma4"},
		{"<start_function_call>call:f{x:<escape>", "functiongemma", ""},
		{"<|START_THINKING|> <|START_RESPONSE|> <|START_ACTION|>", "cohere_command3",
			"cohere_command3"},
		{"<|START_THINKING|> <|START_TEXT|> <|START_ACTION|>", "cohere_command4",
			"cohere_command4"},
		{"<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", "glm47", ""},
		{"<|start|>assistant<|channel|>analysis<|message|>", "openai", "openai_gptoss"},
		{"<|start_header_id|> {\"name\": …, \"parameters\": …}", "llama3_json", ""},
		{"<tool_calls><tool_call>f<tool_sep><arg_key>x</arg_key><think></think>", "hy_v3", "qwen3"},
		{"<think></think><response></response><tool_call>", "ernie45", "ernie45"},
		{"<|extra_0|><think></think><answer></answer>", "", "hunyuan_a13b"},
		{"<|tools_prefix|>[{", "apertus", ""},
		{"<dots_function_call><invoke name=", "dots", ""},
		{"{{ messages }}", "", ""},
	} {
		f, thinking := Detect(tt.template)
		if f != FormatNamed(tt.format) || thinking != ThinkingNamed(tt.thinking) {
			t.Errorf("%s is %v and %v", tt.template, f, thinking)
		}
	}
}

// TestState: the end of a prompt says whether the model is thinking. Where content has tags of its
// own, an answer that goes on has them behind it.
func TestState(t *testing.T) {
	for _, tt := range []struct {
		family, text  string
		after, within State
	}{
		{"qwen3", "", Unsaid, Unsaid},
		{"qwen3", "a<think>\n", Open, Open},
		{"qwen3", "<think>\n\n</think>\n\n", Closed, Closed},
		{"qwen3", "<think>a", Unsaid, Open},
		{"qwen3", "<think>a</think>b", Unsaid, Closed},
		{"qwen3", "a", Unsaid, Unsaid},
		{"openai_gptoss", "<|start|>assistant", Unsaid, Closed},
		{"openai_gptoss", "<|channel|>analysis<|message|>", Open, Open},
		{"cohere_command3", "<|START_THINKING|><|END_THINKING|>", Closed, Closed},
		{"gemma4", "<|turn>model\n<|channel>thought\n", Open, Open},
		{"gemma4", "<|channel>thought\n<channel|>", Closed, Closed},
		{"gemma4", "<|turn>model\n", Unsaid, Unsaid},
	} {
		f := ThinkingNamed(tt.family)
		if got := f.StateAfter(tt.text); got != tt.after {
			t.Errorf("%s after %q: %d, want %d", tt.family, tt.text, got, tt.after)
		}
		if got := f.StateWithin(tt.text); got != tt.within {
			t.Errorf("%s within %q: %d, want %d", tt.family, tt.text, got, tt.within)
		}
	}
}

// TestCut cuts every answer of testdata, and one that must call in every format, at every
// character: what is read is the beginning of the whole answer's parts, whatever the pieces, and
// of its content up to the cut only what may have become a tag or a call is missing.
func TestCut(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.ID, func(t *testing.T) { cutEverywhere(t, v.options(t), v.Out) })
	}
	for _, f := range append(slices.Clone(formats), Listed, mistralListed) {
		if !f.HasEnvelope() {
			continue
		}
		name := strings.Join(f.Names, " ")
		t.Run("forced "+name, func(t *testing.T) {
			o := Options{Tools: f, Types: envelopeTypes, ID: func() string { return "made" }}
			text := forcedAnswer(t, &o)
			if whole := fold(t, o, text); whole.content != "" || len(whole.calls) != 2 {
				t.Fatalf("%q is %s", text, whole)
			}
			cutEverywhere(t, o, text)
		})
	}
}

// forcedAnswer is two calls, written as the format's constraint wants them.
func forcedAnswer(t *testing.T, o *Options) string {
	t.Helper()
	v := byteVocabulary()
	dice := rand.New(rand.NewPCG(5, 5))
	c, err := constrain.Compile(constrain.Spec{Kind: constrain.StructuralTag,
		Text: o.Constrain(o.Calls(envelopeTools))}, v, constrain.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		text, done := walk(t, dice, c, v, nil, 3000)
		if done && utf8.ValidString(text) && len(fold(t, *o, text).calls) == 2 {
			return text
		}
	}
	t.Fatal("no answer of two calls")
	return ""
}

// cutEverywhere is the property of TestCut for one answer.
func cutEverywhere(t *testing.T, o Options, out string) {
	t.Helper()
	whole, places := cutFold(t, o, false, out)
	for cut := range out {
		text := out[:cut]
		got, _ := cutFold(t, o, true, text)
		pieces, _ := cutFold(t, o, true, strings.Split(text, "")...)
		if got.String() != pieces.String() {
			t.Fatalf("%q is\n%s\nand by the character\n%s", text, got, pieces)
		}
		before := strings.TrimRight(got.content, space)
		if !strings.HasPrefix(whole.content, before) ||
			!strings.HasPrefix(whole.reasoning, got.reasoning) {
			t.Fatalf("%q is\n%s\nof\n%s", text, got, whole)
		}
		for i, call := range got.calls {
			if call[0] != whole.calls[i][0] || !strings.HasPrefix(whole.calls[i][1], call[1]) {
				t.Fatalf("%q is\n%s\nof\n%s", text, got, whole)
			}
		}
		said := places.before(cut)
		missing := strings.TrimPrefix(strings.TrimRight(said, space), before)
		if missing != "" && !o.mayOpen(strings.TrimSpace(missing)) {
			t.Fatalf("%q lacks %q of its content", text, missing)
		}
	}
}

// places are the parts of the content, with where they are in the answer.
type places []Part

// before is the content before a byte of the answer.
func (list places) before(cut int) string {
	var b strings.Builder
	for _, p := range list {
		switch {
		case p.To <= cut:
			b.WriteString(p.Text)
		case p.From < cut && p.To-p.From == len(p.Text):
			b.WriteString(p.Text[:cut-p.From])
		}
	}
	return b.String()
}

// mayOpen is whether a text is the beginning of a tag, or of what follows one that begins a call or
// a part, or of a call that has none.
func (o *Options) mayOpen(text string) bool {
	f, tags := o.Tools, slices.Clone(o.Drop)
	if f == nil {
		f = new(Format)
	}
	if o.Reasoning != nil {
		tags = append(tags, o.Reasoning.Tags()...)
	}
	begins := func(tag string) bool { return strings.HasPrefix(tag, text) }
	opens := func(tag string) bool { return strings.HasPrefix(text, tag) }
	return f.start != nil || f == olmo || slices.ContainsFunc(append(tags, f.Tags()...), begins) ||
		slices.ContainsFunc(slices.Concat(f.openers, o.layout().headers), opens)
}

// cutFold reads an answer in pieces, and cuts it at their end if it is cut.
func cutFold(t testing.TB, o Options, cut bool, pieces ...string) (*folded, places) {
	t.Helper()
	var f folded
	var content places
	add := func(list []Part) {
		f.add(t, list)
		for _, p := range list {
			if p.Kind == Content {
				content = append(content, p)
			}
		}
	}
	p := New(o)
	defer p.Close()
	for _, s := range pieces {
		add(p.Push(s))
	}
	if cut {
		add(p.Cut())
	}
	add(p.Close())
	return &f, content
}
