package api

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// dashboardRoutes are those of the page for browsers. The page and its files are the same for
// everyone and need no API key; what they show needs it.
func (s *API) dashboardRoutes(page *dashboard.Page) []server.Route {
	list := []server.Route{
		{Method: "GET", Path: dashboard.AboutPath,
			Handler: func(w http.ResponseWriter, _ *server.Request) error {
				return s.WriteJSON(w, page.About())
			},
			Doc: server.Doc{Summary: "Describe the engine", Answer: dashboard.About{}}},
		{Method: "GET", Path: dashboard.LivePath,
			Handler: func(w http.ResponseWriter, r *server.Request) error {
				err := page.Feed(w, r.Request)
				if errors.Is(err, dashboard.ErrViewers) {
					return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 10,
						Message: err.Error()}
				}
				return err
			},
			Doc: server.Doc{Summary: "Send figures as they change", Media: "text/event-stream"}},
	}
	for _, path := range page.Paths() {
		list = append(list, server.Route{Method: "GET", Path: path, Public: true,
			Handler: func(w http.ResponseWriter, r *server.Request) error {
				return page.File(w, r.Request, path)
			},
			Doc: server.Doc{Summary: "Show the page, or a file of it", Media: page.Media(path)}})
	}
	return list
}
