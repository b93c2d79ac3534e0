package openai

import (
	"errors"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// addWindow adds the page for browsers. The page and its files are the same for everyone and need
// no API key; what they show needs it.
func (s *Server) addWindow(page *dashboard.Window,
	add func(method, path string, public bool, h handler)) {
	for _, path := range page.Paths() {
		add("GET", path, true, func(w http.ResponseWriter, r *http.Request) error {
			return page.File(w, r, path)
		})
	}
	add("GET", dashboard.AboutPath, false, func(w http.ResponseWriter, _ *http.Request) error {
		return s.writeJSON(w, page.About())
	})
	add("GET", dashboard.LivePath, false, func(w http.ResponseWriter, r *http.Request) error {
		err := page.Feed(w, r)
		if errors.Is(err, dashboard.ErrViewers) {
			return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 10,
				Message: err.Error()}
		}
		return err
	})
}
