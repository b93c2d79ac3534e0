package openai

import (
	"reflect"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
)

// classes makes of (3, 4, x): x, and 4-x.
func classes(p *engine.Pooling) {
	p.Classes = engine.NewClasses([]string{"low", "high"}, "", []float32{0, 0, 1, 0, 1, -1})
}

func TestClassify(t *testing.T) {
	s := poolingServer(t, classes)
	got := s.ok(t, classifyPath, `{"input":[[2],[1,5]]}`)
	same(t, got, `{"object":"list","model":"tiny","data":[
		{"index":0,"label":"low","probs":[0.5,0.5],"num_classes":2},
		{"index":1,"label":"high","probs":[0.11920292,0.8807971],"num_classes":2}],
		"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}`,
		"id", "created")
	got = s.ok(t, classifyPath, `{"input":[7],"use_activation":false,"return_token_ids":true}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"label":"low","probs":[7,-3],
		"num_classes":2,"prompt_token_ids":[7]}`)
	got = s.ok(t, poolingPath, `{"input":[7],"task":"classify","activation":false}`)
	same(t, at(t, got, "data", 0).(map[string]any), `{"index":0,"object":"pooling","data":[7,-3]}`)
	s.ok(t, classifyPath, `{"messages":[{"role":"user","content":"hello"}]}`)
	for _, c := range []struct{ path, body, param, message string }{
		{classifyPath, `{}`, "input", "empty"},
		{classifyPath, `{"input":[1],"use_activation":3}`, "use_activation", "boolean"},
		{poolingPath, `{"input":[1]}`, "task", `this model has "classify". Vectors of each token`},
		{poolingPath, `{"input":[1],"task":"token_classify"}`, "task", "not supported"},
		{poolingPath, `{"input":[1],"task":"classify","dimensions":2}`, "dimensions", "for embeddings"},
		{embeddingsPath, `{"input":[1]}`, "model", "classifies texts"},
		{scorePath, `{"text_1":"a","text_2":"b"}`, "model", "classifies texts"},
	} {
		refused(t, s, c.path, c.body, 400, c.param, c.message)
	}

	embeds := poolingServer(t, nil)
	got = embeds.ok(t, poolingPath, `{"input":[12],"task":"embed","encoding_format":"base64"}`)
	want := at(t, embeds.ok(t, embeddingsPath, `{"input":[12],"encoding_format":"base64"}`),
		"data", 0, "embedding")
	if v := at(t, got, "data", 0, "data"); !reflect.DeepEqual(v, want) {
		t.Errorf("pooled %v, embedded %v", v, want)
	}
	refused(t, embeds, poolingPath, `{"input":[1],"task":"classify"}`, 400, "task", `has "embed"`)
	refused(t, embeds, poolingPath, `{"input":[1],"task":"token_embed"}`, 400, "task", "not supported")
	refused(t, embeds, classifyPath, `{"input":[1]}`, 400, "model", "no head over classes")
	refused(t, newServer(t), classifyPath, `{"input":[1]}`, 400, "model", "--runner pooling")
	refused(t, newServer(t), poolingPath, `{"input":[1]}`, 400, "model", "--runner pooling")
}
