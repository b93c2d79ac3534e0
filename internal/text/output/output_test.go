package output

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

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
