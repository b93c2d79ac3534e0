package openai

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/engine/adapters"
)

// modelCard is an entry of /v1/models.
type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      *string           `json:"parent"`
	MaxModelLen int               `json:"max_model_len"`
	Permission  []modelPermission `json:"permission"`
}

type modelPermission struct {
	ID                 string  `json:"id"`
	Object             string  `json:"object"`
	Created            int64   `json:"created"`
	AllowCreateEngine  bool    `json:"allow_create_engine"`
	AllowSampling      bool    `json:"allow_sampling"`
	AllowLogprobs      bool    `json:"allow_logprobs"`
	AllowSearchIndices bool    `json:"allow_search_indices"`
	AllowView          bool    `json:"allow_view"`
	AllowFineTuning    bool    `json:"allow_fine_tuning"`
	Organization       string  `json:"organization"`
	Group              *string `json:"group"`
	IsBlocking         bool    `json:"is_blocking"`
}

func (s *API) card(name string) modelCard {
	m := &s.Model
	return modelCard{ID: name, Object: "model", Created: s.created, OwnedBy: "eagleray",
		Root: m.Root, MaxModelLen: m.MaxModelLen,
		Permission: []modelPermission{{ID: "modelperm-" + call.NewID(), Object: "model_permission",
			Created:       s.created,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*"}}}
}

// adapterCard is that of an adapter.
func (s *API) adapterCard(a adapters.Adapter) modelCard {
	c := s.card(a.Name)
	c.Root, c.Parent, c.Created = a.Path, &s.Model.Names[0], a.Loaded.Unix()
	return c
}

// modelList is the answer of GET /v1/models.
type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

// listModels answers GET /v1/models: one entry per served name, and per adapter.
func (s *API) listModels(w http.ResponseWriter, _ *server.Request) error {
	list := modelList{Object: "list"}
	for _, name := range s.Model.Names {
		list.Data = append(list.Data, s.card(name))
	}
	for _, a := range s.Adapters() {
		list.Data = append(list.Data, s.adapterCard(a))
	}
	return s.WriteJSON(w, list)
}

// getModel answers GET /v1/models/{model...}.
func (s *API) getModel(w http.ResponseWriter, r *server.Request) error {
	name, bad := s.CheckModel(r.PathValue("model"))
	if bad != nil {
		return bad
	}
	if a, ok := s.Adapter(name); ok {
		return s.WriteJSON(w, s.adapterCard(a))
	}
	return s.WriteJSON(w, s.card(name))
}
