package api

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// addDashboard adds the page for browsers. The page and its files are the same for everyone and
// need no API key; what they show needs it.
func (s *API) addDashboard(page *dashboard.Page,
	add func(path string, public bool, h server.Handler, doc server.Doc)) {
	for _, path := range page.Paths() {
		add(path, true, func(w http.ResponseWriter, r *server.Request) error {
			return page.File(w, r.Request, path)
		}, server.Doc{Summary: "Show the page, or a file of it, to a browser",
			Media: page.Media(path)})
	}
	add(dashboard.AboutPath, false, func(w http.ResponseWriter, _ *server.Request) error {
		return s.WriteJSON(w, page.About())
	}, server.Doc{Summary: "Describe the engine to the page", Answer: dashboard.About{}})
	add(dashboard.LivePath, false, func(w http.ResponseWriter, r *server.Request) error {
		err := page.Feed(w, r.Request)
		if errors.Is(err, dashboard.ErrViewers) {
			return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 10,
				Message: err.Error()}
		}
		return err
	}, server.Doc{Summary: "Feed the page", Media: "text/event-stream"})
}
