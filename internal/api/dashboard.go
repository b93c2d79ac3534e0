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
	add func(method, path string, public bool, h server.Handler)) {
	for _, path := range page.Paths() {
		add("GET", path, true, func(w http.ResponseWriter, r *server.Request) error {
			return page.File(w, r.Request, path)
		})
	}
	add("GET", dashboard.AboutPath, false, func(w http.ResponseWriter, _ *server.Request) error {
		return s.WriteJSON(w, page.About())
	})
	add("GET", dashboard.LivePath, false, func(w http.ResponseWriter, r *server.Request) error {
		err := page.Feed(w, r.Request)
		if errors.Is(err, dashboard.ErrViewers) {
			return &wire.Error{Status: http.StatusServiceUnavailable, RetryAfter: 10,
				Message: err.Error()}
		}
		return err
	})
	if page.Measures() {
		add("POST", dashboard.MeasurePath, false,
			func(w http.ResponseWriter, r *server.Request) error {
				m, bad := s.measurement(r)
				if bad != nil {
					return bad
				}
				err := page.Measure(w, r.Request, m)
				if errors.Is(err, dashboard.ErrMeasuring) {
					return &wire.Error{Status: http.StatusConflict, Message: err.Error()}
				}
				return err
			})
	}
}

// measurement reads POST /window/measure?num_prompts=N&max_concurrency=N&random_input_len=N&
// random_output_len=N, the names of `bench serve`.
func (s *API) measurement(r *server.Request) (dashboard.Measurement, *wire.Error) {
	m := dashboard.Measurement{Header: r.Header}
	q, most := r.URL.Query(), s.opt.Info.MaxModelLen
	for _, field := range []struct {
		name      string
		to        *int
		otherwise int
		most      int
	}{
		{"num_prompts", &m.Prompts, 100, dashboard.MaxMeasuredPrompts},
		{"max_concurrency", &m.Concurrency, 16, dashboard.MaxMeasuredConcurrency},
		{"random_input_len", &m.InputLen, min(64, most-1), most - 1},
		{"random_output_len", &m.OutputLen, 1, most - 1},
	} {
		v, bad := wire.QueryInt(q, field.name, field.otherwise, 1, field.most)
		if bad != nil {
			return m, bad
		}
		*field.to = v
	}
	if m.InputLen+m.OutputLen > most {
		return m, wire.BadRequest("random_output_len", "`random_input_len` %d and "+
			"`random_output_len` %d exceed the model's length of %d", m.InputLen, m.OutputLen, most)
	}
	return m, nil
}
