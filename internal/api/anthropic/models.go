package anthropic

import (
	"net/http"
	"slices"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// ModelsPath is where both dialects list models.
const ModelsPath = "/v1/models"

// modelInfo is a model as Anthropic's API describes it.
type modelInfo struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	// CreatedAt is in the form of RFC 3339.
	CreatedAt string `json:"created_at"`
	// Lifecycle is active for all that can be asked.
	Lifecycle string `json:"lifecycle"`
	// MaxInputTokens and MaxTokens bound prompt and answer, which share the context.
	MaxInputTokens int `json:"max_input_tokens"`
	MaxTokens      int `json:"max_tokens"`
}

func (s *API) info(name string) modelInfo {
	return modelInfo{Type: "model", ID: name, DisplayName: name,
		CreatedAt: wire.Time(s.created), Lifecycle: "active",
		MaxInputTokens: s.Model.MaxModelLen, MaxTokens: s.Model.MaxModelLen}
}

// listModels answers GET /v1/models: one entry per served name.
func (s *API) listModels(w http.ResponseWriter, r *server.Request) error {
	a, bad := wire.AskedPage(r.URL.Query())
	if bad != nil {
		return bad
	}
	names, more := slices.Clone(s.Model.Names), false
	for _, a := range s.Adapters() {
		names = append(names, a.Name)
	}
	for field, id := range map[string]string{"after_id": a.After, "before_id": a.Before} {
		if id != "" && !slices.Contains(names, id) {
			return wire.BadRequest(field, "`%s` %q is no model of the list", field, wire.Clip(id))
		}
	}
	switch {
	case a.Before != "":
		names = names[:slices.Index(names, a.Before)]
		if more = len(names) > a.Limit; more {
			names = names[len(names)-a.Limit:]
		}
	default:
		names = names[slices.Index(names, a.After)+1:]
		if more = len(names) > a.Limit; more {
			names = names[:a.Limit]
		}
	}
	list := make([]modelInfo, len(names))
	for i, name := range names {
		list[i] = s.info(name)
	}
	return s.WriteJSON(w, wire.NewPage(list, more, func(m *modelInfo) string { return m.ID }))
}

// getModel answers GET /v1/models/{model...}.
func (s *API) getModel(w http.ResponseWriter, r *server.Request) error {
	name, bad := s.CheckModel(r.PathValue("model"))
	if bad != nil {
		return bad
	}
	return s.WriteJSON(w, s.info(name))
}
