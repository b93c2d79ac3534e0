package pooling

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
)

// API answers requests for what a model pools of texts: vectors, classes, scores.
type API struct {
	*server.Server
	*generate.Service
}

// New makes the routes' answers.
func New(srv *server.Server, service *generate.Service) *API { return &API{srv, service} }

// pooling is what all requests for vectors share.
type pooling struct {
	generate.Sampling
	// before is put before each text.
	before string
	// most is how many tokens a text may have, 0 for as many as the model reads; cut is what is
	// done to longer ones where the client does not say: NONE, START or END.
	most int
	cut  string
}

func (p *pooling) shared() *pooling { return p }

// decode reads the shared fields.
func (p *pooling) decode(f *wire.Fields) {
	if name := f.OptString("model"); name != nil {
		p.Model = *name
	}
	// unless the request has a side: what pools reads a text from its beginning
	p.TruncateRight = true
	p.decodeTruncate(f)
	p.DecodeTruncation(f)
	p.DecodeNames(f)
	p.MaxTokens = new(int) // none follows: a text may be as long as the model reads
	p.Timeout = f.OptFloat("timeout")
	p.Priority = int(f.Ranged("priority", 0, -1<<31, 1<<31-1))
	p.AddSpecial = f.Boolean("add_special_tokens", true)
	p.N, p.TopLogprobs, p.TopPromptLogprobs = 1, sample.NoLogprobs, sample.NoLogprobs
	f.Unsupported("mm_processor_kwargs", "{}")
	f.Unsupported("softmax", "true")
	f.Unsupported("padding", `"do_not_pad"`)
}

// decodeTruncate reads whether texts that are too long are cut, as Cohere's, Jina's, NVIDIA's and
// Voyage's clients say it.
func (p *pooling) decodeTruncate(f *wire.Fields) {
	switch raw := f.Value("truncate"); string(raw) {
	case "":
	case `"NONE"`, `"START"`, `"END"`:
		p.cut = wire.Unquote(raw)
	default:
		cut, ok := wire.CoerceBool(raw)
		if p.cut = "NONE"; cut {
			p.cut = "END"
		}
		if !ok {
			f.Fail(wire.BadRequest("truncate", "`truncate` must be NONE, START, END or a "+
				"boolean, got %s", wire.Clip(string(raw))))
		}
	}
	if f.OptBool("truncation", false) {
		p.cut = "END"
	}
	if p.cut == "START" || p.cut == "END" {
		n := int64(-1)
		if p.most > 0 {
			n = int64(p.most)
		}
		p.Truncate(n, p.cut == "END")
	}
}

// sides are what clients of others call the two sides of a search, by the names that
// sentence-transformers looks for a prompt with first.
var sides = [][]string{
	{"query", "search_query", "retrieval.query"},
	{"document", "passage", "corpus", "search_document", "retrieval.passage"},
}

// decodePrompt reads which of the model's prompts is put before texts, as sentence-transformers
// names them, or in fields of others' clients, which say what the texts are for. A text that has
// none, or is of a side that the model has none for, has the prompt of all.
func (p *pooling) decodePrompt(f *wire.Fields, m *generate.Model, uses ...string) {
	known, name := m.Pooling.Prompts, m.Pooling.DefaultPrompt
	has := func(name string) bool { _, ok := known[name]; return ok }
	for i, field := range append([]string{"prompt_name"}, uses...) {
		asked := f.OptString(field)
		if asked == nil {
			continue
		}
		names := []string{*asked}
		for _, side := range sides {
			if i > 0 && slices.Contains(side, *asked) {
				names = append(names, side...)
			}
		}
		switch at := slices.IndexFunc(names, has); {
		case at >= 0:
			name = names[at]
		case len(names) == 1:
			f.Fail(wire.BadRequest(field, "`%s` %q is none of the model's: %q", field,
				wire.Clip(*asked), slices.Sorted(maps.Keys(known))))
		}
	}
	p.before = known[name]
}

// texts are what is pooled, each for itself.
type texts struct {
	pooling
	generate.Conversation
	// input is what a field has; chat says that it is of messages instead.
	input []generate.RawPrompt
	field string
	chat  bool
	// tokens says that the ids of each prompt are shown.
	tokens bool
	// each asks for a vector of every token.
	each bool
}

// decode reads texts, and in fields of uses what they are for.
func (t *texts) decode(f *wire.Fields, m *generate.Model, uses ...string) {
	if input := f.Members["input"]; f.Members["messages"] == nil && firstOf(input) == '{' {
		f.Members["messages"] = f.Pop("input")
	}
	if f.Members["messages"] != nil {
		t.chat = true
		openai.DecodeConversation(&t.Conversation, f, m, false)
	} else {
		t.field = "input"
		t.input = openai.DecodePrompt(f, m, t.field)
	}
	t.pooling.decode(f)
	t.pooling.decodePrompt(f, m, uses...)
	t.tokens = f.OptBool("return_token_ids", false)
}

// vectors are those of texts, as the model pools.
func (s *API) vectors(r *server.Request, name string, t *texts) (*generate.Generation,
	[]generate.Prompt, [][]float32, error) {
	if t.chat {
		p, bad := s.Render(r.Context(), &t.Conversation, &t.Sampling)
		if bad != nil {
			return nil, nil, nil, bad
		}
		t.input = []generate.RawPrompt{{IDs: p.Prompt}}
		t.Conversation.Drop()
	}
	kind := s.Model.Pooling.Type
	if t.each {
		kind = step.PoolAll
	}
	prompts, bad := s.poolPrompts(r.Context(), &t.pooling, t.field, t.input, kind)
	if bad == nil && t.each {
		bad = checkNumbers(s.Model.Pooling, prompts)
	}
	if bad != nil {
		return nil, nil, nil, bad
	}
	g, vectors, err := s.pool(r, name, &t.pooling, prompts)
	return g, prompts, vectors, err
}

// maxNumbers bounds the numbers of an answer with a vector of every token: 64 MiB of float32.
const maxNumbers = 16 << 20

// checkNumbers refuses more numbers than an answer may have.
func checkNumbers(p *open.Pooling, prompts []generate.Prompt) *wire.Error {
	tokens := 0
	for i := range prompts {
		tokens += len(prompts[i].Prompt)
	}
	if n := tokens * max(p.Width, p.State); n > maxNumbers {
		return wire.BadRequest("input", "vectors of %d tokens are %d numbers, more than %d: give "+
			"fewer or shorter texts", tokens, n, maxNumbers)
	}
	return nil
}

// poolPrompts turns texts into requests, each for what kind pools of it.
func (s *API) poolPrompts(ctx context.Context, p *pooling, field string, raw []generate.RawPrompt,
	kind step.Pooling, tokens ...int32) ([]generate.Prompt, *wire.Error) {
	prompts := make([]generate.Prompt, len(raw))
	for i, one := range raw {
		if err := ctx.Err(); err != nil {
			return nil, wire.Cancelled()
		}
		if one.IsText && one.Second == nil {
			if one.Text = p.before + one.Text; s.Model.Pooling.Lower {
				one.Text = cases.Lower(language.Und).String(one.Text)
			}
		}
		t, bad := s.Tokenize(ctx, &p.Sampling, field, one)
		if bad != nil {
			return nil, bad
		}
		if n := len(t.Prompt); p.most > 0 && n > p.most {
			return nil, wire.BadRequest(field, "`%s` %d has %d tokens, more than the %d of "+
				"`max_tokens`. Set `truncate` to END or START to have it cut.", field, i, n, p.most)
		}
		if n, most := len(t.Prompt), s.Model.MaxModelLen; n > most {
			return nil, wire.TooLong(field, "This model's maximum context length is %d tokens. "+
				"However, `%s` %d has %d tokens. "+
				"Set `truncate_prompt_tokens` to -1 to have it cut.", most, field, i, n)
		}
		q := engine.NewPoolingRequest(t.Prompt, kind, tokens...)
		q.Salt, q.Priority, q.Second = p.CacheSalt, p.Priority, t.Second
		prompts[i] = generate.Prompt{Request: *q}
	}
	return prompts, nil
}

// pool computes the vectors of prompts.
func (s *API) pool(r *server.Request, kind string, p *pooling, prompts []generate.Prompt) (
	g *generate.Generation, vectors [][]float32, err error) {
	if g, err = s.Start(r.Context(), &r.Call, kind, &p.Sampling, prompts); err != nil {
		return nil, nil, err
	}
	vectors = make([][]float32, len(prompts))
	err = g.Each(r.Context(), func(i int, d *engine.Delta) error {
		g.Choices[i].Add(d)
		vectors[i] = append(vectors[i], d.Pooled...)
		return nil
	})
	for i := range vectors {
		kind := prompts[i].Pooling
		if err == nil && kind != step.PoolLogits && kind != step.PoolAll {
			vectors[i], err = s.Model.Pooling.Vector(vectors[i])
		}
	}
	return g, vectors, err
}

// answer is what is computed of a list of texts or pairs, one item for each.
type answer[T any] struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Created int64          `json:"created"`
	Model   string         `json:"model"`
	Data    []T            `json:"data"`
	Usage   wire.UsageInfo `json:"usage"`
}

// newAnswer makes an answer with room for n items. Its usage counts tokens that are only read.
func newAnswer[T any](g *generate.Generation, n int) *answer[T] {
	read := g.Usage().Prompt
	return &answer[T]{ID: g.ID, Object: "list", Created: g.Created, Model: g.Model,
		Data: make([]T, n), Usage: wire.UsageInfo{PromptTokens: read, TotalTokens: read}}
}
