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
	for path, doc := range map[string]server.Doc{
		"/":                 {Summary: "Show the page", Media: "text/html"},
		dashboard.FilesPath: {Summary: "Show a file of the page", Media: "*/*"},
	} {
		list = append(list, server.Route{Method: "GET", Path: path, Public: true, Doc: doc,
			Handler: func(w http.ResponseWriter, r *server.Request) error {
				if !page.File(w, r.Request, r.PathValue("file")) {
					return s.NoRoute(r.Request)
				}
				return nil
			}})
	}
	if page.Measures() {
		list = append(list, s.measureRoute(page))
	}
	return list
}

// measured are the parameters of a measurement, by the names of `bench serve`.
var measured = []server.Param{{Name: "num_prompts", Type: "integer"},
	{Name: "max_concurrency", Type: "integer"}, {Name: "random_input_len", Type: "integer"},
	{Name: "random_output_len", Type: "integer"}}

func (s *API) measureRoute(page *dashboard.Page) server.Route {
	return server.Route{Method: "POST", Path: dashboard.MeasurePath,
		Handler: func(w http.ResponseWriter, r *server.Request) error {
			m, bad := s.measurement(r)
			if bad != nil {
				return bad
			}
			err := page.Measure(w, r.Request, m)
			if errors.Is(err, dashboard.ErrMeasuring) {
				return &wire.Error{Status: http.StatusConflict, Message: err.Error()}
			}
			return err
		},
		Doc: server.Doc{Summary: "Measure the server with random prompts", Query: measured,
			Media: "text/event-stream"}}
}

// measurement reads what is to be measured.
func (s *API) measurement(r *server.Request) (dashboard.Measurement, *wire.Error) {
	m := dashboard.Measurement{Header: server.Credentials(r.Header)}
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
