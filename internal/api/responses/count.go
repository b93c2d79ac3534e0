package responses

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// InputTokens is the answer of POST /v1/responses/input_tokens.
type InputTokens struct {
	Object      string `json:"object"`
	InputTokens int    `json:"input_tokens"`
}

// countInput answers POST /v1/responses/input_tokens: how many tokens the model would read.
func (s *API) countInput(w http.ResponseWriter, r *server.Request, _ *wire.Fields,
	req *responseRequest) error {
	var bad *wire.Error
	if req.Model, bad = s.CheckModel(req.Model); bad != nil {
		return bad
	}
	if bad = s.checkStored(r, req); bad == nil {
		bad = s.finishResponse(r, req)
	}
	if bad != nil {
		return bad
	}
	if req.record.Truncation == truncateAuto {
		bad := s.Fits(r.Context(), req.Chat)
		if bad.IsTooLong() {
			bad = s.shorten(r.Context(), req)
		}
		if bad != nil {
			return bad
		}
	}
	p, bad := s.Render(r.Context(), &req.Conversation, &req.Sampling)
	if bad != nil {
		return bad
	}
	return s.WriteJSON(w, InputTokens{"response.input_tokens", len(p.Prompt)})
}
