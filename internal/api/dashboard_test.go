package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/dashboard"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// stillEngine is an engine that does nothing.
type stillEngine struct{}

func (stillEngine) Info() *open.Info {
	return &open.Info{Names: []string{"secret-model"}}
}

func (stillEngine) Totals() engine.Totals         { return engine.Totals{} }
func (stillEngine) Report() []executor.RankStatus { return nil }
func (stillEngine) Links() []metrics.Link         { return nil }
func (stillEngine) ExpertLoad(context.Context) ([]engine.ExpertLoad, error) {
	return nil, engine.ErrNoExpertLoad
}

func (stillEngine) Healthy(context.Context) error  { return nil }
func (stillEngine) Health(context.Context) []error { return nil }

// TestDashboardNeedsTheKey: the page itself is public and says nothing of the engine; what it shows
// is behind the key.
func TestDashboardNeedsTheKey(t *testing.T) {
	page, err := dashboard.New(dashboard.Options{Engine: stillEngine{},
		Events: &dashboard.Events{}, Measure: measureNothing})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) {
		o.Dashboard = page
		o.Config.Server.APIKeys = []string{"k"}
		o.Config.Server.RootPath = "/api"
	})
	for _, path := range []string{"/", "/window/js/main.js", "/window/css/window.css",
		"/window/icon.svg", "/api/", "/api/window/js/main.js"} {
		rec := s.do("GET", path, "")
		if rec.Code != 200 || strings.Contains(rec.Body.String(), "secret-model") {
			t.Errorf("%s answered %d: %s", path, rec.Code, rec.Body)
		}
		if rec := s.do("POST", path, "{}"); rec.Code != 405 {
			t.Errorf("POST %s answered %d", path, rec.Code)
		}
	}
	if rec := s.do("GET", dashboard.Prefix+"js/none.js", ""); rec.Code != 404 {
		t.Errorf("a file that is not there answered %d", rec.Code)
	}
	for _, path := range []string{dashboard.AboutPath, dashboard.LivePath, dashboard.Prefix} {
		if rec := s.do("GET", path, ""); rec.Code != 401 {
			t.Errorf("%s without the key answered %d", path, rec.Code)
		}
	}
	rec := s.do("GET", dashboard.AboutPath, "", "Authorization", "Bearer k")
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), `"secret-model"`) {
		t.Errorf("about answered %d: %s", rec.Code, rec.Body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := newRequest("GET", dashboard.LivePath, "").WithContext(ctx)
	r.Header.Set("Authorization", "Bearer k")
	rec = s.serveRequest(r)
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), "event: sample\ndata: {") {
		t.Errorf("the feed answered %d: %s", rec.Code, rec.Body)
	}
	if rec := s.do("POST", dashboard.MeasurePath, ""); rec.Code != 401 {
		t.Errorf("a measurement without the key answered %d", rec.Code)
	}
	if rec := newServer(t).do("GET", "/", ""); rec.Code != 404 {
		t.Errorf("without a dashboard / answered %d", rec.Code)
	}
	r = newRequest("GET", "/", "")
	r.Host = "evil.example"
	if rec := s.serveRequest(r); rec.Code != 421 {
		t.Errorf("by another name / answered %d", rec.Code)
	}
}

func measureNothing(context.Context, dashboard.Measurement, func(int)) (map[string]any, error) {
	return map[string]any{}, nil
}

// TestMeasurement reads what is to be measured from the address.
func TestMeasurement(t *testing.T) {
	var got dashboard.Measurement
	page, err := dashboard.New(dashboard.Options{Engine: stillEngine{},
		Events: &dashboard.Events{},
		Measure: func(_ context.Context, m dashboard.Measurement, _ func(int)) (map[string]any,
			error) {
			got = m
			return map[string]any{"completed": 1}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) { o.Dashboard = page })
	most := s.opt.Info.MaxModelLen
	for _, c := range []struct{ query, want string }{
		{"num_prompts=0", "`num_prompts` must be an integer between 1 and 10000"},
		{"max_concurrency=2000", "`max_concurrency` must be an integer between 1 and 1024"},
		{"random_input_len=x", "`random_input_len` must be an integer"},
		{fmt.Sprintf("random_input_len=%d&random_output_len=2", most-1), "exceed the model's"},
		{"num_prompts=3&max_concurrency=2&random_input_len=5&random_output_len=7", ""},
	} {
		rec := s.do("POST", dashboard.MeasurePath+"?"+c.query, "")
		body := rec.Body.String()
		switch {
		case c.want != "" && (rec.Code != 400 || !strings.Contains(body, c.want)):
			t.Errorf("%s answered %d: %s", c.query, rec.Code, body)
		case c.want == "" && !strings.HasSuffix(body, "event: result\ndata: {\"completed\":1}\n\n"):
			t.Errorf("%s answered %d: %s", c.query, rec.Code, body)
		}
	}
	got.Header = nil
	want := dashboard.Measurement{Prompts: 3, Concurrency: 2, InputLen: 5, OutputLen: 7}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("measured was %+v, not %+v", got, want)
	}
}

// TestShutdownWithViewer: an open page does not hold up the end of the server.
func TestShutdownWithViewer(t *testing.T) {
	page, err := dashboard.New(dashboard.Options{Engine: stillEngine{},
		Events: &dashboard.Events{}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(t, func(o *Options) { o.Dashboard = page }).HTTPServer(
		listener.Addr().String())
	go server.Serve(listener)
	answer, err := http.Get("http://" + listener.Addr().String() + dashboard.LivePath)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		t.Errorf("with a viewer: %v", err)
	}
	if rest, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(rest),
		"about") {
		t.Errorf("the viewer got %q, %v", rest, err)
	}
}
