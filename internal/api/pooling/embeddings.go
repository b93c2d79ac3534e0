package pooling

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine/open"
)

const EmbeddingsPath = "/v1/embeddings"

// embeddingRequest is the body of POST /v1/embeddings: OpenAI's, or with messages, vLLM's. What
// Jina's, Voyage's and NVIDIA's clients add to OpenAI's fields is read too.
type embeddingRequest struct {
	texts
	form
	normalize bool
	// dimensions is how many of a vector's elements are wanted.
	dimensions int
}

func decodeEmbedding(f *wire.Fields, m *generate.Model) (*embeddingRequest, *wire.Error) {
	r := &embeddingRequest{}
	r.texts.decode(f, m, "input_type", "task")
	r.decodeVector(f, m)
	if kind := f.OptString("encoding_format"); kind != nil {
		r.form = parseForm(f, "encoding_format", *kind, r.dimensions, "float", "base64")
	}
	if kind := f.OptString("embedding_type"); kind != nil {
		r.form = parseForm(f, "embedding_type", *kind, r.dimensions, forms...)
	}
	if kind := f.OptString("output_dtype"); kind != nil {
		of := parseForm(f, "output_dtype", *kind, r.dimensions, "float", "binary", "ubinary")
		r.bits, r.signed = of.bits, of.signed
	}
	f.Unsupported("embed_dtype", `"float32"`)
	f.Unsupported("endianness", `"native"`, `"little"`)
	f.Unsupported("late_chunking", "false")
	f.Unsupported("return_multivector", "false")
	return r, f.Err
}

// decodeVector reads what is wanted of vectors, whatever the form of their numbers.
func (r *embeddingRequest) decodeVector(f *wire.Fields, m *generate.Model) {
	r.normalize = m.Pooling.Normalize
	for _, name := range []string{"normalize", "use_activation", "normalized"} {
		r.normalize = f.OptBool(name, r.normalize)
	}
	r.dimensions = m.Pooling.Width
	for _, name := range []string{"dimensions", "output_dimension"} {
		if d := f.OptInt(name); d != nil {
			f.Fail(checkDimensions(m.Pooling, name, *d))
			r.dimensions = int(*d)
		}
	}
}

// checkDimensions lets models be cut that were trained for it.
func checkDimensions(p *open.Pooling, field string, d int64) *wire.Error {
	switch {
	case d < 1 || d > int64(p.Width):
		return wire.BadRequest(field, "`%s` must be between 1 and %d, got %d", field, p.Width, d)
	case !p.Matryoshka && d != int64(p.Width):
		return wire.BadRequest(field,
			"Model does not support matryoshka representation, changing output dimensions will "+
				"lead to poor results. "+
				"(--hf-overrides '{\"is_matryoshka\": true}' says that it does.)")
	case len(p.Dimensions) > 0 && !slices.Contains(p.Dimensions, int(d)):
		return wire.BadRequest(field,
			"`%s` of %d is not one of those the model has: %v", field, d, p.Dimensions)
	}
	return nil
}

// embedding is one vector: its numbers, or as base64 of little-endian float32.
type embedding struct {
	Index     int    `json:"index"`
	Object    string `json:"object"`
	Embedding any    `json:"embedding"`
	// PromptTokenIDs are what was read, with return_token_ids.
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
}

// embed answers POST /v1/embeddings.
func (s *API) embed(r *server.Request, req *embeddingRequest) (any, error) {
	g, prompts, vectors, err := s.vectors(r, "embd-", &req.texts)
	if err != nil {
		return nil, err
	}
	list := newAnswer[embedding](g, len(vectors))
	for i, v := range vectors {
		e := embedding{Index: i, Object: "embedding", Embedding: req.encode(req.trim(v))}
		if req.tokens {
			e.PromptTokenIDs = prompts[i].Prompt
		}
		list.Data[i] = e
	}
	return list, nil
}

// trim is what is wanted of a vector.
func (r *embeddingRequest) trim(v []float32) []float32 {
	v = v[:r.dimensions]
	if r.normalize {
		normalize(v)
	}
	return v
}

// normalize makes a vector one of length 1; zero stays.
func normalize(v []float32) {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return
	}
	scale := 1 / math.Sqrt(sum)
	for i, x := range v {
		v[i] = float32(float64(x) * scale)
	}
}

// firstOf is the first byte of a value, of an array that of its first element, 0 for none.
func firstOf(raw []byte) byte {
	if raw = bytes.TrimLeft(raw, "[ \t\r\n"); len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// listed is a field that is a text or a list of texts, or of objects that stand for them.
func listed(f *wire.Fields, m *generate.Model, names ...string) (field string,
	list []generate.RawPrompt) {
	for _, name := range names {
		switch {
		case f.Members[name] == nil:
			continue
		case firstOf(f.Members[name]) != '{':
			return name, openai.DecodePrompt(f, m, name)
		}
		objects := f.Value(name)
		if objects[0] == '{' {
			objects = append(append([]byte{'['}, objects...), ']')
		}
		return name, decodeObjects(f, name, objects)
	}
	f.Fail(wire.BadRequest(names[0], "`%s` is missing", strings.Join(names, "` or `")))
	return names[0], nil
}
