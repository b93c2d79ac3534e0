package api

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/pooling"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
)

// eightServer has a model whose vectors have eight numbers, of which the last one is the first
// token of the text.
func eightServer(t testing.TB, change func(*open.Pooling)) *testServer {
	s := poolingServer(t, func(p *open.Pooling) {
		p.Width, p.Normalize = 8, false
		if change != nil {
			change(p)
		}
	})
	s.engine.play = func(i int, r *engine.Request) script {
		p := poolVectors(i, r)
		p.deltas[0].Pooled = []float32{3, 4, -1, 0, -2, 5, -6, float32(r.Prompt[0])}
		return p
	}
	return s
}

// TestCohere answers the bodies of cohere 7.3.1's ClientV2.embed and Client.embed.
func TestCohere(t *testing.T) {
	s := eightServer(t, nil)
	const sent = `"texts":["a","a b"],"model":"tiny","input_type":"search_document"`
	first := tinyTokenizer(t).Encode("a", false)[0]
	floats := fmt.Sprintf("[3,4,-1,0,-2,5,-6,%d]", first)
	base64 := pooling.EmbeddingsPath
	base64 = at(t, s.ok(t, base64, `{"input":"a","encoding_format":"base64"}`), "data", 0,
		"embedding").(string)
	got := s.ok(t, pooling.CoherePath, `{`+sent+
		`,"embedding_types":["float","binary","ubinary","base64"]}`)
	meta := at(t, got, "meta")
	same(t, got, strings.NewReplacer("F", floats, "B", base64).Replace(`{"embeddings":{
		"float":[F,F],"binary":[[85],[85]],"ubinary":[[213],[213]],"base64":["B","B"]},
		"texts":["a","a b"],"response_type":"embeddings_by_type"}`), "id", "meta")
	if want := fmt.Sprint(map[string]any{"api_version": map[string]any{"version": "2"},
		"billed_units": map[string]any{"input_tokens": 3., "image_tokens": 0.}}); fmt.Sprint(
		meta) != want {
		t.Errorf("meta %v, want %v", meta, want)
	}
	got = s.ok(t, pooling.CoherePath, `{`+sent+`}`)
	if v := at(t, got, "embeddings", "float", 1, 5); v != 5. {
		t.Errorf("%v", v)
	}
	got = s.ok(t, pooling.CohereV1Path, `{`+sent+`}`)
	same(t, got, strings.ReplaceAll(`{"embeddings":[F,F],"texts":["a","a b"],
		"response_type":"embeddings_floats"}`, "F", floats), "id", "meta")
	got = s.ok(t, pooling.CohereV1Path, `{`+sent+`,"embedding_types":["ubinary"]}`)
	if v := at(t, got, "embeddings", "ubinary", 1, 0); v != 213. {
		t.Errorf("%v", v)
	}
	got = s.ok(t, pooling.CoherePath, `{"inputs":[{"content":[{"type":"text","text":"a"},
		{"type":"text","text":"b"}]}],"model":"tiny","input_type":"search_query"}`)
	if text := tinyTokenizer(t).Decode(s.engine.last(t).Prompt, false); text != "a\nb" ||
		got["texts"] != nil {
		t.Errorf("%q, %v", text, got)
	}
	for _, c := range []struct{ body, param, message string }{
		{`{"images":["data:image/png;base64,AAAA"],"input_type":"image"}`, "images",
			"not supported"},
		{`{` + sent + `,"embedding_types":["int8"]}`, "embedding_types", "float or base64"},
		{`{` + sent + `,"output_dimension":4}`, "output_dimension", "matryoshka"},
		{`{"texts":["a"],"input_type":"clustering"}`, "input_type", "none of the model's"},
		{`{"texts":[]}`, "texts", "empty"},
		{`{"inputs":[]}`, "inputs", "empty"},
		{`{"inputs":[{"content":[{"type":"image_url"}]}]}`, "inputs", "reads text"},
		{`{"inputs":["a"]}`, "inputs", "an object"},
		{`{"inputs":[{"text":"a"}],"texts":["a"]}`, "texts", "not both"},
		{`{"texts":["a"],"truncate":"LEFT"}`, "truncate", `END or a boolean, got "LEFT"`},
		{`{"texts":["a b c"],"truncate":"NONE","max_tokens":2}`, "texts", "more than the 2"},
	} {
		refused(t, s, pooling.CoherePath, c.body, 400, c.param, c.message)
	}
	three := poolingServer(t, nil)
	refused(t, three, pooling.CoherePath, `{"texts":["a"],"embedding_types":["binary"]}`, 400,
		"embedding_types", "a vector has 3")
	refused(t, newServer(t), pooling.CoherePath, `{"texts":["a"]}`, 400, "model", "Embed API")
}

// TestTextsAreCut: each client's way to say that a text which is too long is cut.
func TestTextsAreCut(t *testing.T) {
	s := eightServer(t, nil)
	ids := tinyTokenizer(t).Encode("a b c d", false)
	most := s.Model.MaxModelLen
	long := `"` + strings.Repeat("a b ", most) + `"`
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{pooling.CoherePath, `{"texts":["a b c d"],"max_tokens":2}`, 2},
		{pooling.CoherePath, `{"texts":["a b c d"],"max_tokens":2,"truncate":"START"}`, -2},
		{pooling.CoherePath, `{"texts":["a b c d"],"max_tokens":1000000}`, len(ids)},
		{pooling.CoherePath, `{"texts":[` + long + `]}`, most},
		{pooling.EmbeddingsPath, `{"input":[` + long + `],"truncation":true}`, most}, // Voyage's
		{pooling.EmbeddingsPath, `{"input":[` + long + `],"truncate":true}`, most},   // Jina's
		{pooling.EmbeddingsPath, `{"input":[` + long + `],"truncate":"END"}`, most},  // NVIDIA's
	} {
		s.ok(t, c.path, c.body)
		got := s.engine.last(t).Prompt
		switch {
		case c.want < 0 && !reflect.DeepEqual(got, ids[len(ids)+c.want:]),
			c.want > 0 && c.want <= len(ids) && !reflect.DeepEqual(got, ids[:c.want]),
			len(got) != max(c.want, -c.want):
			t.Errorf("%.90s: %d tokens, want %d", c.body, len(got), c.want)
		}
	}
	for _, field := range []string{"", `,"truncation":false`, `,"truncate":"NONE"`} {
		refused(t, s, pooling.EmbeddingsPath, `{"input":[`+long+`]`+field+`}`, 400, "input",
			"maximum context length")
	}
}

// TestFormsOfOthers: what Jina's and Voyage's clients call the form of a vector.
func TestFormsOfOthers(t *testing.T) {
	s := eightServer(t, func(p *open.Pooling) { p.Matryoshka = true })
	for fields, want := range map[string]any{
		`"embedding_type":"ubinary"`:                             []any{213.},
		`"embedding_type":"binary"`:                              []any{85.},
		`"output_dtype":"ubinary","encoding_format":null`:        []any{213.},
		`"output_dtype":"binary","encoding_format":"base64"`:     "VQ==",
		`"embedding_type":"base64","dimensions":1`:               "AABAQA==",
		`"output_dtype":"float","output_dimension":2`:            []any{3., 4.},
		`"dimensions":2,"normalized":true,"late_chunking":false`: []any{0.6, 0.8},
	} {
		got := s.ok(t, pooling.EmbeddingsPath, `{"input":["a"],`+fields+`}`)
		if v := at(t, got, "data", 0, "embedding"); !reflect.DeepEqual(v, want) {
			t.Errorf("%s: %v, want %v", fields, v, want)
		}
	}
	for _, c := range []struct{ fields, param, message string }{
		{`"output_dtype":"int8"`, "output_dtype", "float or binary or ubinary"},
		{`"output_dtype":"binary","output_dimension":4`, "output_dtype", "eight numbers"},
		{`"embedding_type":"int4"`, "embedding_type", "ubinary"},
		{`"output_dimension":9`, "output_dimension", "between 1 and 8"},
		{`"late_chunking":true`, "late_chunking", "not supported"},
		{`"return_multivector":true`, "return_multivector", "not supported"},
		{`"task":"text-matching"`, "task", "none of the model's"},
	} {
		refused(t, s, pooling.EmbeddingsPath, `{"input":["a"],`+c.fields+`}`, 400, c.param,
			c.message)
	}
}

// TestSidesOfSearches: what clients call queries and documents finds the model's prompts.
func TestSidesOfSearches(t *testing.T) {
	s := poolingServer(t, func(p *open.Pooling) {
		p.Prompts = map[string]string{"query": "q:", "passage": "p:", "all": "a:", "code": "c:"}
		p.DefaultPrompt = "all"
	})
	bare := poolingServer(t, nil)
	for use, want := range map[string]string{"query": "q:x", "search_query": "q:x", "code": "c:x",
		"retrieval.query": "q:x", "document": "p:x", "search_document": "p:x", "": "a:x"} {
		for path, body := range map[string]string{
			pooling.CoherePath:     `{"texts":["x"],"input_type":"` + use + `"}`,
			pooling.EmbeddingsPath: `{"input":"x","task":"` + use + `"}`,
		} {
			if use == "" {
				body = `{"input":"x","texts":["x"],"input_type":null,"task":null}`
			}
			s.ok(t, path, body)
			got := tinyTokenizer(t).Decode(s.engine.last(t).Prompt, false)
			if got != want {
				t.Errorf("%s %s: the engine got %q, want %q", path, body, got, want)
			}
			if use != "code" {
				bare.ok(t, path, body)
			}
		}
	}
}

// TestRanksOfOthers answers the bodies of cohere 7.3.1's and voyageai 0.5.0's rerank.
func TestRanksOfOthers(t *testing.T) {
	s := poolingServer(t, nil)
	got := s.ok(t, "/v1/rerank", `{"query":"a","documents":[{"text":"b"},{"text":"a"}],
		"rank_fields":["text"],"return_documents":false,"top_n":1,"model":"tiny"}`)
	score := at(t, got, "results", 0, "relevance_score")
	same(t, got, fmt.Sprintf(`{"model":"tiny","results":[{"index":1,"relevance_score":%v}]}`,
		score), "id", "usage")
	got = s.ok(t, "/v1/rerank", `{"query":"a","documents":["b","a"],"top_k":1,"model":"tiny",
		"truncation":true}`)
	same(t, got, fmt.Sprintf(`{"object":"list","model":"tiny","data":[{"index":1,
		"relevance_score":%v,"document":{"text":"a"}}]}`, score), "id", "usage")
	got = s.ok(t, pooling.ScorePath, `{"queries":{"content":[{"type":"text","text":"a"}]},
		"items":[ {"text":"a"}]}`)
	if at(t, got, "data", 0, "score") != score {
		t.Errorf("%v", got)
	}
	refused(t, s, "/rerank", `{"query":"a","documents":[{"title":"b"}]}`, 400, "documents",
		"`text`")
	refused(t, s, "/rerank", `{"query":"a","documents":["b"],"rank_fields":["title"]}`, 400,
		"rank_fields", "not supported")
	const document = "a longer text, again"
	tok := tinyTokenizer(t)
	for most, want := range []int{len(tok.Encode(document, false)), 1, 2, 3} {
		got = s.ok(t, "/v2/rerank", fmt.Sprintf(`{"query":"a b","documents":["%s"],
			"max_tokens_per_doc":%d,"max_tokens_per_query":1}`, document, most))
		ids := s.engine.last(t).Prompt
		text := tok.Decode(ids, false)
		if whole := at(t, got, "results", 0, "document", "text"); len(ids) != want ||
			!strings.HasPrefix(document, text) || whole != document {
			t.Errorf("at most %d tokens: the engine got %q, the answer has %q", most, text, whole)
		}
		if query := s.engine.requests[len(s.engine.requests)-2].Prompt; len(query) != 1 {
			t.Errorf("a query of %d tokens", len(query))
		}
	}
}
