package pooling

import (
	"encoding/json"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Routes of Cohere's for embeddings, of which vLLM has the newer one.
const (
	CoherePath   = "/v2/embed"
	CohereV1Path = "/v1/embed"
)

// cohereRequest is the body of POST /v2/embed, as Cohere's clients send it.
type cohereRequest struct {
	embeddingRequest
	// shown are texts that the answer repeats.
	shown []generate.RawPrompt
	// kinds are the names of the forms in which the answer has each vector.
	kinds []string
	forms []form
}

func decodeCohere(f *wire.Fields, m *generate.Model) (*cohereRequest, *wire.Error) {
	r := &cohereRequest{}
	f.Unsupported("images", "[]")
	r.field = "texts"
	if inputs := f.Array("inputs"); inputs == nil {
		r.shown = openai.DecodePrompt(f, m, "texts")
		r.input = r.shown
	} else if r.field, r.input = "inputs", decodeObjects(f, "inputs", inputs); r.input == nil {
		f.Fail(wire.BadRequest("inputs", "`inputs` is empty"))
	} else if f.Value("texts") != nil {
		f.Fail(wire.BadRequest("texts", "one of `texts` and `inputs` is embedded, not both"))
	}
	r.most, r.cut = int(f.Ranged("max_tokens", 0, 1, 1<<31-1)), "END"
	if r.most >= m.MaxModelLen {
		r.most = 0
	}
	r.pooling.decode(f)
	r.decodePrompt(f, m, "input_type")
	r.decodeVector(f, m)
	r.kinds = f.Strings("embedding_types", f.Array("embedding_types"), len(forms), 16)
	for _, kind := range r.kinds {
		r.forms = append(r.forms, parseForm(f, "embedding_types", kind, r.dimensions, forms...))
	}
	return r, f.Err
}

// decodeObjects reads a list of objects that stand for texts: `text` is one, and `content` a list
// of parts, all of which are texts, and lines of one.
func decodeObjects(f *wire.Fields, field string, raw []byte) (list []generate.RawPrompt) {
	f.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		var object struct {
			Text    *string
			Content []struct{ Type, Text string }
		}
		err := json.Unmarshal(raw, &object)
		switch {
		case err != nil || object.Text == nil && object.Content == nil:
			return wire.BadRequest(field, "`%s[%d]` must be an object with a `text`, or with a "+
				"list of parts as its `content`", field, i)
		case i == f.Lim.Prompts:
			return wire.BadRequest(field, "`%s` has more than %d prompts", field, f.Lim.Prompts)
		case object.Text != nil:
			list = append(list, generate.RawPrompt{Text: *object.Text, IsText: true})
			return nil
		}
		var lines []string
		for _, part := range object.Content {
			if part.Type != "text" {
				return wire.BadRequest(field, "`%s[%d]` has a part of type %q: this server reads "+
					"text", field, i, wire.Clip(part.Type))
			}
			lines = append(lines, part.Text)
		}
		list = append(list, generate.RawPrompt{Text: strings.Join(lines, "\n"), IsText: true})
		return nil
	}))
	return list
}

// cohereAnswer is Cohere's of either version.
type cohereAnswer struct {
	ID string `json:"id"`
	// Embeddings are vectors by the names of their forms, or a list of them.
	Embeddings any        `json:"embeddings"`
	Texts      []string   `json:"texts,omitempty"`
	Meta       cohereMeta `json:"meta"`
	Type       string     `json:"response_type"`
}

type cohereMeta struct {
	API   map[string]string `json:"api_version"`
	Units map[string]int    `json:"billed_units"`
}

// embedCohere answers POST /v2/embed and /v1/embed, of which the latter has one form of a vector,
// without a name, unless it is asked for others.
func (s *API) embedCohere(r *server.Request, req *cohereRequest) (any, error) {
	g, _, vectors, err := s.vectors(r, "embd-", &req.texts)
	if err != nil {
		return nil, err
	}
	for i, v := range vectors {
		vectors[i] = req.trim(v)
	}
	version := "2"
	if strings.HasSuffix(r.URL.Path, CohereV1Path) {
		version = "1"
	} else if req.forms == nil {
		req.kinds, req.forms = forms[:1], make([]form, 1)
	}
	a := cohereAnswer{ID: g.ID, Embeddings: vectors, Type: "embeddings_floats",
		Meta: cohereMeta{API: map[string]string{"version": version},
			Units: map[string]int{"input_tokens": g.Usage().Prompt, "image_tokens": 0}}}
	if len(req.forms) > 0 {
		kinds := map[string][]any{}
		for i, kind := range req.kinds {
			kinds[kind] = make([]any, len(vectors))
			for j, v := range vectors {
				kinds[kind][j] = req.forms[i].encode(v)
			}
		}
		a.Embeddings, a.Type = kinds, "embeddings_by_type"
	}
	for _, p := range req.shown {
		a.Texts = append(a.Texts, p.Text)
	}
	return a, nil
}
