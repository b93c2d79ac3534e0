package api

import (
	"encoding/base64"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// poolingServer has a model that pools (3, 4, first token of the prompt), or for logits the number
// of tokens and zero.
func poolingServer(t testing.TB, change func(*open.Pooling)) *testServer {
	s := newServer(t, func(o *Options) {
		p := &open.Pooling{Type: step.PoolLast, Normalize: true, Width: 3}
		if change != nil {
			change(p)
		}
		o.Info.Pooling = p
	})
	s.engine.play = poolVectors
	return s
}

func poolVectors(_ int, r *engine.Request) script {
	v := []float32{3, 4, float32(r.Prompt[0])}
	if r.Pooling == step.PoolLogits {
		v = []float32{float32(len(r.Prompt)) / 10, 0}
	}
	if r.Pooling == step.PoolAll {
		v = nil
		for _, id := range r.Prompt {
			v = append(v, 3, 4, float32(id))
		}
	}
	return script{deltas: []engine.Delta{{Tokens: []int32{0}, Pooled: v,
		Finish:       sample.FinishLength,
		OutputTokens: 1}}}
}

func TestEmbeddings(t *testing.T) {
	s := poolingServer(t, nil)
	got := s.ok(t, pooling.EmbeddingsPath, `{"input":[[0,5],[12]]}`)
	same(t, got, `{"object":"list","model":"tiny","data":[
		{"index":0,"object":"embedding","embedding":[0.6,0.8,0]},
		{"index":1,"object":"embedding","embedding":[0.23076923,0.30769232,0.9230769]}],
		"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}`,
		"id", "created")
	if r := s.engine.last(t); r.Pooling != step.PoolLast || r.Params.MaxTokens != 1 {
		t.Errorf("the engine got %+v", r)
	}
	got = s.ok(t, pooling.EmbeddingsPath,
		`{"input":[0,5],"encoding_format":"base64","normalize":false}`)
	raw, err := base64.StdEncoding.DecodeString(at(t, got, "data", 0, "embedding").(string))
	want := []byte{0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40, 0, 0, 0, 0}
	if err != nil || !reflect.DeepEqual(raw, want) {
		t.Errorf("%v, %v", raw, err)
	}
	got = s.ok(t, pooling.EmbeddingsPath, `{"input":"what does it do","dimensions":3}`)
	if n := len(s.engine.last(t).Prompt); n < 2 || at(t, got, "usage",
		"prompt_tokens") != float64(n) {
		t.Errorf("a prompt of %d tokens: %v", n, got["usage"])
	}
	for side, want := range map[string][]int32{``: {1, 2}, `,"truncation_side":"left"`: {2, 3}} {
		s.ok(t, pooling.EmbeddingsPath, `{"input":[1,2,3],"truncate_prompt_tokens":2`+side+`}`)
		if r := s.engine.last(t); !reflect.DeepEqual(r.Prompt, want) {
			t.Errorf("cut to two%s: %v", side, r.Prompt)
		}
	}
	// A conversation that is not answered does not end where an answer begins, as in vLLM.
	ends := map[string][]int32{}
	for _, body := range []string{`"messages":M`, `"input":M`,
		`"messages":M,"add_generation_prompt":true`} {
		s.ok(t, pooling.EmbeddingsPath, "{"+strings.Replace(body, "M",
			`[{"role":"user","content":"hello"}]`, 1)+"}")
		ends[body] = s.engine.last(t).Prompt
	}
	plain := ends[`"messages":M`]
	opened := ends[`"messages":M,"add_generation_prompt":true`]
	if !reflect.DeepEqual(ends[`"input":M`], plain) || len(plain) == 0 ||
		len(opened) <= len(plain) || !reflect.DeepEqual(opened[:len(plain)], plain) {
		t.Errorf("conversations of %v", ends)
	}
	cut := poolingServer(t, func(p *open.Pooling) {
		p.Type, p.Matryoshka, p.Dimensions = step.PoolMean, true, []int{1, 2}
	})
	got = cut.ok(t, pooling.EmbeddingsPath, `{"input":[9],"dimensions":2}`)
	if v := at(t, got, "data", 0, "embedding"); !reflect.DeepEqual(v, []any{0.6, 0.8}) {
		t.Errorf("cut to 2: %v", v)
	}
	if k := cut.engine.last(t).Pooling; k != step.PoolMean {
		t.Errorf("pooled %v", k)
	}
}

func TestScores(t *testing.T) {
	s := poolingServer(t, nil)
	got := s.ok(t, pooling.ScorePath, `{"text_1":[0],"text_2":[[0],[12]]}`)
	if at(t, got, "data", 0, "object") != "score" || at(t, got, "data", 1, "index") != 1. {
		t.Errorf("%v", got)
	}
	if a, b := at(t, got, "data", 0, "score").(float64), at(t, got, "data", 1,
		"score").(float64); math.Abs(a-1) > 1e-6 || math.Abs(b-25./5/13) > 1e-6 {
		t.Errorf("scores %v, %v", a, b)
	}
	got = s.ok(t, "/rerank", `{"query":"a","documents":["b","a","c"],"top_n":2}`)
	if n := len(at(t, got, "results").([]any)); n != 2 || at(t, got, "results", 0, "index") != 1. ||
		at(t, got, "results", 0, "document", "text") != "a" {
		t.Errorf("%v", got)
	}
	judge := poolingServer(t, func(p *open.Pooling) {
		p.Classifier, p.Qwen3Reranker = []int32{7, 8},
			true
	})
	got = judge.ok(t, pooling.ScorePath,
		`{"queries":"why","documents":["x"],"chat_template_kwargs":{"instruction":"Be kind"}}`)
	r := judge.engine.last(t)
	text := tinyTokenizer(t).Decode(r.Prompt, false)
	if !strings.Contains(text, "<Instruct>: Be kind\n<Query>: why\n<Document>: x<|im_end|>") ||
		r.Pooling != step.PoolLogits || fmt.Sprint(r.Params.AllowedTokens) != "[7 8]" {
		t.Errorf("the engine got %q, %+v", text, r)
	}
	want := 1 / (1 + math.Exp(float64(float32(len(r.Prompt))/10)))
	if x := at(t, got, "data", 0, "score").(float64); math.Abs(x-want) > 1e-6 {
		t.Errorf("score %v, want %v", x, want)
	}
	// A text that is cut is asked about, too.
	most := len(r.Prompt) + 2
	judge.ok(t, pooling.ScorePath, fmt.Sprintf(`{"queries":"why","documents":["%s"],
		"chat_template_kwargs":{"instruction":"Be kind"},"truncate_prompt_tokens":%d}`,
		strings.Repeat("x y z ", 9), most))
	cut := judge.engine.last(t).Prompt
	ending := text[strings.Index(text, "<|im_end|>\n<|im_start|>assistant"):]
	if text := tinyTokenizer(t).Decode(cut, false); len(cut) != most ||
		!strings.HasSuffix(text, ending) || !strings.Contains(text, "<Document>: x y") {
		t.Errorf("%d tokens of %d: %q", len(cut), most, text)
	}
	refused(t, judge, pooling.ScorePath, `{"queries":"why","documents":["x"],
		"truncate_prompt_tokens":1}`, 400, "truncate_prompt_tokens", "leaves no room")
}

// TestScoreTemplate: a --chat-template makes one prompt of both texts, of classifiers and of models
// that say one of two tokens, with the client's variables.
func TestScoreTemplate(t *testing.T) {
	template, err := chattemplate.Parse(`{{ instruction }}: {% for m in messages %}{{ m.role }} ` +
		`{{ m.content }};{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, classes := range []bool{true, false} {
		s := newServer(t, func(o *Options) {
			o.Info.Template = template
			o.Info.Pooling = &open.Pooling{Type: step.PoolLast, Width: 3, Templated: true,
				Classifier: []int32{7, 8}, Qwen3Reranker: true}
			if classes {
				o.Info.Pooling.Classes = open.NewClasses([]string{"x"}, "", []float32{1, 0, 0})
			}
		})
		s.engine.play = poolVectors
		for more, task := range map[string]string{
			`,"instruction":"a"`: "a",
			`,"instruction":"a","chat_template_kwargs":{"instruction":"b"}`: "b",
		} {
			s.ok(t, "/rerank", `{"query":"why","documents":["x"]`+more+`}`)
			r := s.engine.last(t)
			text, want := tinyTokenizer(t).Decode(r.Prompt, false), task+": query why;document x;"
			if text != want || r.Second != 0 {
				t.Errorf("classes %t: the engine got %q, want %q", classes, text, want)
			}
		}
		refused(t, s, pooling.ScorePath, `{"text_1":"a","text_2":"b",
			"chat_template_kwargs":{"tokenize":true}}`, 400, "chat_template_kwargs", "cannot set")
	}
}

func TestPoolingRefuses(t *testing.T) {
	s := poolingServer(t, nil)
	for _, c := range []struct{ path, body, param, message string }{
		{pooling.EmbeddingsPath, `{}`, "input", "empty"},
		{pooling.EmbeddingsPath, `{"input":[]}`, "input", "empty"},
		{pooling.EmbeddingsPath, `{"input":["a",""]}`, "input", "has no tokens"},
		{pooling.EmbeddingsPath, `{"input":[[]]}`, "input", "empty"},
		{pooling.EmbeddingsPath, `{"input":["a",1]}`, "input", "mixes"},
		{pooling.EmbeddingsPath, `{"input":"a","encoding_format":"hex"}`, "encoding_format",
			"float or base64"},
		{pooling.EmbeddingsPath, `{"input":"a","dimensions":2}`, "dimensions", "matryoshka"},
		{pooling.EmbeddingsPath, `{"input":"a","dimensions":4}`, "dimensions", "between 1 and 3"},
		{pooling.EmbeddingsPath, `{"input":"` + strings.Repeat("a b ", 2000) + `"}`, "input",
			"maximum context length"},
		{pooling.EmbeddingsPath, `{"input":"a","embed_dtype":"int8"}`, "embed_dtype",
			"not supported"},
		{pooling.ScorePath, `{"text_1":"a"}`, "text_2", "missing"},
		{pooling.ScorePath, `{"text_1":["a","b"],"text_2":["c"]}`, "text_1",
			"2 queries meet 1 documents"},
		{pooling.ScorePath, `{"text_1":"a","text_2":"b","max_tokens_per_doc":-1}`,
			"max_tokens_per_doc", "between 0"},
		{pooling.EmbeddingsPath, `{"input":"a","padding":"max_length"}`, "padding",
			"not supported"},
		{pooling.RerankPath, `{"query":["a","b"],"documents":["c","d"]}`, "query", "one text"},
		{completionsPath, `{"prompt":"a"}`, "model", "does not generate"},
		{openai.ChatPath, `{"messages":[{"role":"user","content":"a"}]}`, "model",
			"does not generate"},
	} {
		refused(t, s, c.path, c.body, 400, c.param, c.message)
	}
	generates := newServer(t)
	refused(t, generates, pooling.EmbeddingsPath, `{"input":"a"}`, 400, "model",
		"does not support Embeddings API")
	refused(t, generates, "/score", `{"text_1":"a","text_2":"b"}`, 400, "model", "--runner pooling")
}

// TestPromptNames puts the model's prompts before texts, by name or by default, and refuses others.
func TestPromptNames(t *testing.T) {
	s := poolingServer(t, func(p *open.Pooling) {
		p.Prompts = map[string]string{"query": "Why: ", "document": ""}
		p.DefaultPrompt, p.Lower = "query", true
	})
	tok := tinyTokenizer(t)
	for body, want := range map[string]string{
		`{"input":"A word"}`:                          "why: a word",
		`{"input":"ΟΔΟΣ","prompt_name":"document"}`:   "οδο\u03c2", // as Python has it
		`{"input":["A word"],"prompt_name":"query"}`:  "why: a word",
		`{"input":"A word","prompt_name":"document"}`: "a word",
		`{"input":"A word","truncate_prompt_tokens":2}`: tok.Decode(
			tok.Encode("why: a word", true)[:2], false),
	} {
		s.ok(t, pooling.EmbeddingsPath, body)
		got := tok.Decode(s.engine.last(t).Prompt, false)
		if got != want {
			t.Errorf("%s: the engine got %q, want %q", body, got, want)
		}
	}
	s.ok(t, pooling.EmbeddingsPath, `{"input":[5,6]}`)
	if r := s.engine.last(t); len(r.Prompt) != 2 {
		t.Errorf("token ids are %v", r.Prompt)
	}
	s.ok(t, pooling.ScorePath, `{"text_1":"a","text_2":"b","prompt_name":"document"}`)
	refused(t, s, pooling.EmbeddingsPath, `{"input":"a","prompt_name":"q"}`, 400, "prompt_name",
		`["document" "query"]`)
}

// TestSecondText: what a classifier of pairs reads says where the second text begins, where the
// model has types of tokens.
func TestSecondText(t *testing.T) {
	for _, types := range []bool{true, false} {
		s := poolingServer(t, func(p *open.Pooling) {
			p.Classes, p.PairTypes = open.NewClasses([]string{"x"}, "", []float32{1, 0, 0}), types
		})
		s.ok(t, "/rerank", `{"query":"what is it","documents":["it"]}`)
		want := 0
		if types {
			want = len(tinyTokenizer(t).Encode("what is it", false))
		}
		if r := s.engine.last(t); int(r.Second) != want {
			t.Errorf("types %t: the second text begins at %d, want %d", types, r.Second, want)
		}
	}
}

// TestWholeContext: a text that is pooled may be as long as the model reads.
func TestWholeContext(t *testing.T) {
	s := poolingServer(t, nil)
	most := s.Model.MaxModelLen
	text := "[" + strings.Repeat("1,", most-1) + "1]"
	s.ok(t, pooling.EmbeddingsPath, `{"input":`+text+`}`)
	s.ok(t, pooling.EmbeddingsPath, `{"input":[1,`+text[1:]+`,"truncate_prompt_tokens":-1}`)
	if n := len(s.engine.last(t).Prompt); n != most {
		t.Errorf("cut to %d tokens, not %d", n, most)
	}
}
