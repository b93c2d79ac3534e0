package pooling

import (
	"encoding/base64"
	"encoding/binary"
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

// embeddingRequest is the body of POST /v1/embeddings: OpenAI's, or with messages, vLLM's.
type embeddingRequest struct {
	texts
	base64    bool
	normalize bool
	// dimensions is how many of a vector's elements are wanted.
	dimensions int
}

func decodeEmbedding(f *wire.Fields, m *generate.Model) (*embeddingRequest, *wire.Error) {
	r := &embeddingRequest{}
	r.texts.decode(f, m)
	switch format := f.OptString("encoding_format"); {
	case format == nil || *format == "float":
	case *format == "base64":
		r.base64 = true
	default:
		f.Fail(wire.BadRequest("encoding_format",
			"`encoding_format` must be float or base64, got %q", wire.Clip(*format)))
	}
	r.normalize = m.Pooling.Normalize
	for _, name := range []string{"normalize", "use_activation"} {
		r.normalize = f.OptBool(name, r.normalize)
	}
	r.dimensions = m.Pooling.Width
	if d := f.OptInt("dimensions"); d != nil {
		f.Fail(checkDimensions(m.Pooling, *d))
		r.dimensions = int(*d)
	}
	f.Unsupported("embed_dtype", `"float32"`)
	f.Unsupported("endianness", `"native"`, `"little"`)
	return r, f.Err
}

// checkDimensions lets models be cut that were trained for it.
func checkDimensions(p *open.Pooling, d int64) *wire.Error {
	switch {
	case d < 1 || d > int64(p.Width):
		return wire.BadRequest("dimensions", "`dimensions` must be between 1 and %d, got %d",
			p.Width, d)
	case !p.Matryoshka && d != int64(p.Width):
		return wire.BadRequest("dimensions",
			"Model does not support matryoshka representation, changing output dimensions will "+
				"lead to poor results. "+
				"(--hf-overrides '{\"is_matryoshka\": true}' says that it does.)")
	case len(p.Dimensions) > 0 && !slices.Contains(p.Dimensions, int(d)):
		return wire.BadRequest("dimensions",
			"`dimensions` of %d is not one of those the model has: %v", d, p.Dimensions)
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
		e := embedding{Index: i, Object: "embedding", Embedding: req.encode(req.cut(v))}
		if req.tokens {
			e.PromptTokenIDs = prompts[i].Prompt
		}
		list.Data[i] = e
	}
	return list, nil
}

// cut is what is wanted of a vector.
func (r *embeddingRequest) cut(v []float32) []float32 {
	v = v[:r.dimensions]
	if r.normalize {
		normalize(v)
	}
	return v
}

// encode is a vector as the answer has it.
func (r *embeddingRequest) encode(v []float32) any {
	if !r.base64 {
		return v
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
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

// listed is a field that is a text or a list of texts.
func listed(f *wire.Fields, m *generate.Model, names ...string) (field string,
	list []generate.RawPrompt) {
	for _, name := range names {
		if f.Members[name] != nil {
			return name, openai.DecodePrompt(f, m, name)
		}
	}
	f.Fail(wire.BadRequest(names[0], "`%s` is missing", strings.Join(names, "` or `")))
	return names[0], nil
}
