package api

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// expertsAnswer is the load of the experts of each engine.
type expertsAnswer struct {
	Engines []engineExperts `json:"engines"`
}

type engineExperts struct {
	Engine int            `json:"engine"`
	Layers []layerExperts `json:"layers"`
}

// layerExperts is the load of the experts of a layer.
type layerExperts struct {
	Layer        int     `json:"layer"`
	Balancedness float64 `json:"balancedness"`
	Hottest      int     `json:"hottest_expert"`
	Share        float64 `json:"hottest_share"`
	// Tokens are those that each expert was sent since the weights were loaded, Recent those of the
	// last minutes: of these are the figures above.
	Tokens []int64 `json:"tokens"`
	Recent []int64 `json:"recent_tokens"`
}

// showExperts answers GET /debug/experts.
func (s *API) showExperts(w http.ResponseWriter, r *server.Request) error {
	loads, err := s.opt.Experts(r.Context())
	if errors.Is(err, engine.ErrNoExpertLoad) {
		return &wire.Error{Status: http.StatusNotFound, Message: err.Error()}
	}
	if err != nil {
		return err
	}
	a := expertsAnswer{Engines: make([]engineExperts, len(loads))}
	for i, load := range loads {
		a.Engines[i] = engineExperts{Engine: s.opt.Info.First + i,
			Layers: make([]layerExperts, len(load))}
		for n := range load {
			l := &load[n]
			hottest, share := l.Hottest()
			a.Engines[i].Layers[n] = layerExperts{Layer: l.Layer, Balancedness: l.Balancedness(),
				Hottest: hottest, Share: share, Tokens: l.Rows, Recent: l.Recent}
		}
	}
	return s.WriteJSON(w, a)
}
