package pooling

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Routes of scores.
const (
	ScorePath  = "/v1/score"
	RerankPath = "/v1/rerank"
)

// What Qwen3-Reranker was trained to be asked (its model card).
const (
	qwen3RerankBefore = "<|im_start|>system\nJudge whether the Document meets the requirements " +
		"based on " +
		"the Query and the Instruct provided. Note that the answer can only be \"yes\" or " +
		"\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: "
	qwen3RerankTask  = "Given a web search query, retrieve relevant passages that answer the query"
	qwen3RerankAfter = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)

// scoreRequest is the body of POST /v1/score: pairs of texts. One query meets every document.
type scoreRequest struct {
	pooling
	// Conversation has the variables of templates.
	generate.Conversation
	queries, documents []generate.RawPrompt
	// mostQuery and mostDocument are how many tokens a query and a document may have before the
	// rest of it is cut off, 0 for any number.
	mostQuery, mostDocument int
	activate                bool // of a classifier
}

func decodeScore(f *wire.Fields, m *generate.Model) (*scoreRequest, *wire.Error) {
	r := &scoreRequest{}
	var field string
	field, r.queries = listed(f, m, "text_1", "queries", "data_1")
	_, r.documents = listed(f, m, "text_2", "documents", "items", "data_2")
	r.decodePairs(f, m, field)
	return r, f.Err
}

func (r *scoreRequest) decodePairs(f *wire.Fields, m *generate.Model, field string) {
	r.pooling.decode(f)
	r.mostQuery = int(f.Ranged("max_tokens_per_query", 0, 0, 1<<31-1))
	r.mostDocument = int(f.Ranged("max_tokens_per_doc", 0, 0, 1<<31-1))
	if text := f.OptString("instruction"); text != nil {
		r.Kwargs = []wire.Member{{Key: "instruction", Raw: wire.AppendString(nil, *text)}}
	}
	r.DecodeKwargs(f, m)
	if !scoresPairs(m) {
		r.pooling.decodePrompt(f, m)
	}
	if m.Pooling.Classes != nil {
		r.activate = decodeActivation(f, m)
	} else {
		f.Unsupported("activation", "true")
		f.Unsupported("use_activation", "true")
	}
	if q, d := len(r.queries), len(r.documents); f.Err == nil && q != 1 && q != d {
		f.Fail(wire.BadRequest(field,
			"%d queries meet %d documents: there must be one query, or as many as documents", q, d))
	}
	for _, list := range [][]generate.RawPrompt{r.queries, r.documents} {
		for _, p := range list {
			if !p.IsText && scoresPairs(m) {
				f.Fail(wire.BadRequest(field, "texts are scored, not token ids"))
			}
		}
	}
}

// scoresPairs says that the model reads both texts of a pair, and either classifies them or would
// say one of two tokens. Else their vectors are compared.
func scoresPairs(m *generate.Model) bool {
	return m.Pooling.Classes != nil || len(m.Pooling.Classifier) > 0
}

type scoreItem struct {
	Index  int     `json:"index"`
	Object string  `json:"object"`
	Score  float64 `json:"score"`
}

// score answers POST /v1/score.
func (s *API) score(r *server.Request, req *scoreRequest) (any, error) {
	g, scores, err := s.scores(r, req, "score-")
	if err != nil {
		return nil, err
	}
	list := newAnswer[scoreItem](g, len(scores))
	for i, x := range scores {
		list.Data[i] = scoreItem{Index: i, Object: "score", Score: x}
	}
	return list, nil
}

// scores are those of each document with its query.
func (s *API) scores(r *server.Request, req *scoreRequest, kind string) (*generate.Generation,
	[]float64, error) {
	if bad := s.clip(r.Context(), req); bad != nil {
		return nil, nil, bad
	}
	if scoresPairs(&s.Model) {
		return s.judged(r, req, kind)
	}
	all := slices.Concat(req.queries, req.documents)
	prompts, bad := s.poolPrompts(r.Context(), &req.pooling, "documents", all, s.Model.Pooling.Type)
	if bad != nil {
		return nil, nil, bad
	}
	g, vectors, err := s.pool(r, kind, &req.pooling, prompts)
	if err != nil {
		return nil, nil, err
	}
	for _, v := range vectors {
		normalize(v)
	}
	queries, documents := vectors[:len(req.queries)], vectors[len(req.queries):]
	scores := make([]float64, len(documents))
	for i, d := range documents {
		for j, x := range queries[i%len(queries)] {
			scores[i] += float64(x) * float64(d[j])
		}
	}
	return g, scores, nil
}

// clip leaves of queries and documents as many tokens as the request lets each have.
func (s *API) clip(ctx context.Context, req *scoreRequest) *wire.Error {
	for _, of := range []struct {
		field string
		list  *[]generate.RawPrompt
		most  int
	}{{"query", &req.queries, req.mostQuery}, {"documents", &req.documents, req.mostDocument}} {
		if of.most == 0 {
			continue
		}
		*of.list = slices.Clone(*of.list)
		for i := range *of.list {
			if p := &(*of.list)[i]; p.IsText {
				var bad *wire.Error
				if p.Text, bad = s.Beginning(ctx, of.field, p.Text, of.most); bad != nil {
					return bad
				}
			}
		}
	}
	return nil
}

// judged scores pairs by the one class of the model, or by the probability that it says the second
// of its two tokens, not the first.
func (s *API) judged(r *server.Request, req *scoreRequest, kind string) (*generate.Generation,
	[]float64, error) {
	head, pooled, tokens := s.Model.Pooling.Classes, s.Model.Pooling.Type, []int32(nil)
	if head == nil {
		pooled, tokens = step.PoolLogits, s.Model.Pooling.Classifier
	}
	pairs := make([]generate.RawPrompt, len(req.documents))
	for i, d := range req.documents {
		query := req.queries[i%len(req.queries)].Text
		var bad *wire.Error
		if pairs[i], bad = s.pair(r.Context(), req, query, d.Text); bad != nil {
			return nil, nil, bad
		}
	}
	prompts, bad := s.poolPrompts(r.Context(), &req.pooling, "documents", pairs, pooled, tokens...)
	if bad != nil {
		return nil, nil, bad
	}
	g, vectors, err := s.pool(r, kind, &req.pooling, prompts)
	if err != nil {
		return nil, nil, err
	}
	scores := make([]float64, len(vectors))
	for i, v := range vectors {
		if head == nil {
			scores[i] = 1 / (1 + math.Exp(float64(v[0])-float64(v[1])))
			continue
		}
		values, err := head.Of(v, req.activate)
		if err != nil {
			return nil, nil, err
		}
		scores[i] = float64(values[0])
	}
	return g, scores, nil
}

// pair is the prompt that has the model judge a document.
func (s *API) pair(ctx context.Context, req *scoreRequest, query, document string) (
	generate.RawPrompt, *wire.Error) {
	p := s.Model.Pooling
	switch {
	case p.Templated:
		c := req.Conversation
		c.Field = "documents"
		for _, m := range [][2]string{{"query", query}, {"document", document}} {
			raw := append([]byte(`{"role":"`+m[0]+`","content":`), wire.AppendString(nil, m[1])...)
			c.Messages = append(c.Messages, append(raw, '}'))
		}
		prompt, bad := s.Render(ctx, &c, &req.Sampling)
		return generate.RawPrompt{IDs: prompt.Prompt}, bad
	case p.Classes != nil:
		return generate.RawPrompt{IsText: true, Text: query, Second: &document}, nil
	case p.Qwen3Reranker:
		task := qwen3RerankTask
		for _, m := range req.Kwargs {
			if m.Key == "instruction" && m.Raw[0] == '"' {
				task = cmp.Or(wire.Unquote(m.Raw), qwen3RerankTask)
			}
		}
		query = qwen3RerankBefore + task + "\n<Query>: " + query + "\n<Document>: "
		return generate.RawPrompt{IsText: true, Text: query + document,
			After: qwen3RerankAfter}, nil
	}
	return generate.RawPrompt{IsText: true, Text: query + document}, nil
}

// rerankRequest is the body of POST /v1/rerank, as Cohere's, Jina's and Voyage's clients send it.
type rerankRequest struct {
	scoreRequest
	top int
	// bare leaves documents out of the answer; voyage gives it Voyage's form, for requests that
	// have Voyage's name for top_n.
	bare, voyage bool
}

func decodeRerank(f *wire.Fields, m *generate.Model) (*rerankRequest, *wire.Error) {
	r := &rerankRequest{}
	field, queries := listed(f, m, "query")
	r.queries = queries
	_, r.documents = listed(f, m, "documents")
	r.decodePairs(f, m, field)
	if len(r.queries) > 1 {
		f.Fail(wire.BadRequest("query", "`query` must be one text"))
	}
	_, r.voyage = f.Members["top_k"]
	for _, name := range []string{"top_n", "top_k"} {
		r.top = int(f.Ranged(name, int64(r.top), 0, 1<<31-1))
	}
	r.bare = !f.OptBool("return_documents", true)
	f.Unsupported("rank_fields", `["text"]`)
	return r, f.Err
}

type rerankResponse struct {
	ID      string          `json:"id,omitempty"`
	Object  string          `json:"object,omitempty"`
	Model   string          `json:"model"`
	Usage   map[string]int  `json:"usage"`
	Results []*rerankResult `json:"results,omitempty"`
	// Data are the results in an answer of Voyage's form.
	Data []*rerankResult `json:"data,omitempty"`
}

type rerankResult struct {
	Index     int               `json:"index"`
	Document  map[string]string `json:"document,omitempty"`
	Relevance float64           `json:"relevance_score"`
}

// rerank answers POST /v1/rerank, the best document first; equal ones stay in the order they came.
func (s *API) rerank(r *server.Request, req *rerankRequest) (any, error) {
	documents := req.documents // whole ones
	g, scores, err := s.scores(r, &req.scoreRequest, "rerank-")
	if err != nil {
		return nil, err
	}
	answer := rerankResponse{ID: g.ID, Model: g.Model,
		Usage: map[string]int{"total_tokens": g.Usage().Prompt, "prompt_tokens": g.Usage().Prompt}}
	for i, x := range scores {
		result := &rerankResult{Index: i, Relevance: x}
		if !req.bare {
			result.Document = map[string]string{"text": documents[i].Text}
		}
		answer.Results = append(answer.Results, result)
	}
	slices.SortStableFunc(answer.Results, func(a, b *rerankResult) int {
		return cmp.Compare(b.Relevance, a.Relevance)
	})
	if req.top > 0 && req.top < len(answer.Results) {
		answer.Results = answer.Results[:req.top]
	}
	if req.voyage {
		answer.Object, answer.Data, answer.Results = "list", answer.Results, nil
	}
	return answer, nil
}
