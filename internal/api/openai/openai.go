package openai

import (
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// API answers requests in OpenAI's dialect: chat, completions, models and tokens.
type API struct {
	*server.Server
	*generate.Service
	cfg     *config.Server
	created int64
}

// New makes the dialect. created is the Unix time that the list of models shows.
func New(srv *server.Server, service *generate.Service, cfg *config.Server, created int64) *API {
	return &API{srv, service, cfg, created}
}
