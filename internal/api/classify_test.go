package api

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
)

// classes makes of (3, 4, x): x, and 4-x.
func classes(p *open.Pooling) {
	p.Classes = open.NewClasses([]string{"low", "high"}, "", []float32{0, 0, 1, 0, 1, -1})
}

func TestClassify(t *testing.T) {
	s := poolingServer(t, classes)
	got := s.ok(t, pooling.ClassifyPath, `{"input":[[2],[1,5]]}`)
	same(t, got, `{"object":"list","model":"tiny","data":[
		{"index":0,"label":"low","probs":[0.5,0.5],"num_classes":2},
		{"index":1,"label":"high","probs":[0.11920292,0.8807971],"num_classes":2}],
		"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}`,
		"id", "created")
	got = s.ok(t, pooling.ClassifyPath,
		`{"input":[7],"use_activation":false,"return_token_ids":true}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"label":"low","probs":[7,-3],
		"num_classes":2,"prompt_token_ids":[7]}`)
	got = s.ok(t, pooling.PoolingPath, `{"input":[7],"task":"classify","activation":false}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"object":"pooling","data":[7,-3]}`)
	s.ok(t, pooling.ClassifyPath, `{"messages":[{"role":"user","content":"hello"}]}`)
	for _, c := range []struct{ path, body, param, message string }{
		{pooling.ClassifyPath, `{}`, "input", "empty"},
		{pooling.ClassifyPath, `{"input":[1],"use_activation":3}`, "use_activation", "boolean"},
		{pooling.PoolingPath, `{"input":[1],"task":"token_embed"}`, "task",
			`this model has "classify" and "token_classify"`},
		{pooling.PoolingPath, `{"input":[1],"dimensions":2}`, "dimensions", "for embeddings"},
		{pooling.PoolingPath, `{"input":[1],"task":"classify","dimensions":2}`, "dimensions",
			"for embeddings"},
		{pooling.EmbeddingsPath, `{"input":[1]}`, "model", "classifies texts"},
		{pooling.ScorePath, `{"text_1":"a","text_2":"b"}`, "model",
			"it has 2 classes, a score is for one"},
		{pooling.RerankPath, `{"query":"a","documents":["b"]}`, "model",
			"does not support Rerank API"},
	} {
		refused(t, s, c.path, c.body, 400, c.param, c.message)
	}

	embeds := poolingServer(t, nil)
	got = embeds.ok(t, pooling.PoolingPath,
		`{"input":[12],"task":"embed","encoding_format":"base64"}`)
	want := at(t, embeds.ok(t, pooling.EmbeddingsPath, `{"input":[12],"encoding_format":"base64"}`),
		"data", 0, "embedding")
	if v := at(t, got, "data", 0, "data"); !reflect.DeepEqual(v, want) {
		t.Errorf("pooled %v, embedded %v", v, want)
	}
	refused(t, embeds, pooling.PoolingPath, `{"input":[1],"task":"classify"}`, 400, "task",
		`has "embed"`)
	refused(t, embeds, pooling.PoolingPath, `{"input":[1],"task":"token_classify"}`, 400, "task",
		"not supported")
	refused(t, embeds, pooling.ClassifyPath, `{"input":[1]}`, 400, "model", "no head over classes")
	refused(t, newServer(t), pooling.ClassifyPath, `{"input":[1]}`, 400, "model",
		"--runner pooling")
	refused(t, newServer(t), pooling.PoolingPath, `{"input":[1]}`, 400, "model", "--runner pooling")
}

// TestEachToken asks for what there is of every token: as vLLM does, that is what a request without
// a task is for.
func TestEachToken(t *testing.T) {
	s := poolingServer(t, classes)
	for _, task := range []string{``, `,"task":"token_classify"`} {
		got := s.ok(t, pooling.PoolingPath, `{"input":[[7,2],[1]],"use_activation":false`+task+`}`)
		same(t, got, `{"object":"list","model":"tiny","data":[
			{"index":0,"object":"pooling","data":[[7,-3],[2,2]]},
			{"index":1,"object":"pooling","data":[[1,3]]}],"usage":{"prompt_tokens":3,
			"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}`, "id", "created")
	}
	s = poolingServer(t, func(p *open.Pooling) { p.Matryoshka = true })
	got := s.ok(t, pooling.PoolingPath, `{"input":[0,12],"return_token_ids":true}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"object":"pooling",
		"data":[[0.6,0.8,0],[0.23076923,0.30769232,0.9230769]],"prompt_token_ids":[0,12]}`)
	const two = `{"input":[0,12],"task":"token_embed","dimensions":2,"normalize":false`
	got = s.ok(t, pooling.PoolingPath, two+`}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"object":"pooling",
		"data":[[3,4],[3,4]]}`)
	got = s.ok(t, pooling.PoolingPath, two+`,"encoding_format":"base64"}`)
	if v := at(t, got, "data", 0, "data"); v != "AABAQAAAgEAAAEBAAACAQA==" {
		t.Errorf("as base64: %v", v)
	}
	s = poolingServer(t, func(p *open.Pooling) { p.State = 1 << 23 })
	refused(t, s, pooling.PoolingPath, `{"input":[1,2,3]}`, 400, "input", "more than 16777216")
}

// TestScoresByClass: a classifier of one class reads both texts of a pair.
func TestScoresByClass(t *testing.T) {
	s := poolingServer(t, func(p *open.Pooling) {
		p.Classes = open.NewClasses([]string{"fits"}, "", []float32{0, 0, 1.0 / 64})
	})
	tok := tinyTokenizer(t)
	value := func(text string) float64 {
		return 1 / (1 + math.Exp(-float64(tok.Encode(text, false)[0])/64))
	}
	got := s.ok(t, pooling.ScorePath, `{"text_1":["why","how"],"text_2":["x","y z"]}`)
	for i, pair := range [][2]string{{"why", "x"}, {"how", "y z"}} {
		want := slices.Concat(tok.Encode(pair[0], false), tok.Encode(pair[1], false))
		if x := at(t, got, "data", i, "score").(float64); math.Abs(x-value(pair[0])) > 1e-6 {
			t.Errorf("%q scores %v, want %v", pair, x, value(pair[0]))
		}
		if i == 1 && !slices.Equal(s.engine.last(t).Prompt, want) {
			t.Errorf("%q is %v, want %v", pair, s.engine.last(t).Prompt, want)
		}
	}
	got = s.ok(t, pooling.ScorePath, `{"queries":"why","documents":"x","use_activation":false}`)
	if x := at(t, got, "data", 0, "score").(float64); x != float64(tok.Encode("why", false)[0])/64 {
		t.Errorf("without activation: %v", x)
	}
	s.ok(t, pooling.ScorePath, `{"text_1":"why how","text_2":"x y z","truncate_prompt_tokens":2}`)
	if r := s.engine.last(t); !slices.Equal(r.Prompt, []int32{tok.Encode("why how", false)[0],
		tok.Encode("x y z", false)[0]}) || r.Pooling != step.PoolLast {
		t.Errorf("cut to 2: %+v", r)
	}
	got = s.ok(t, "/v2/rerank", `{"query":"why","documents":["b","a"]}`)
	if n := len(at(t, got, "results").([]any)); n != 2 || at(t, got, "results", 1, "document",
		"text") != "a" {
		t.Errorf("%v", got)
	}
	refused(t, s, pooling.ScorePath, `{"text_1":[1],"text_2":[2]}`, 400, "text_1",
		"texts are scored, not token ids")
	refused(t, s, pooling.ScorePath, `{"text_1":"a","text_2":"`+strings.Repeat("a b ", 2000)+`"}`,
		400, "documents", "maximum context length")
	refused(t, s, pooling.ScorePath, `{"text_1":"a","text_2":"b","truncate_prompt_tokens":0}`, 400,
		"documents", "no tokens")
	refused(t, s, pooling.EmbeddingsPath, `{"input":"a"}`, 400, "model", "classifies texts")
}
