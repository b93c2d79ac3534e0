package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
)

// fakeElastic notes what was asked for, and answers err.
type fakeElastic struct {
	asked, what string
	err         error
}

func (e *fakeElastic) ScaleEngines(_ context.Context, to int, drain time.Duration) error {
	e.asked = fmt.Sprintf("%d engines within %v", to, drain)
	return e.err
}

func (e *fakeElastic) Relayout(_ context.Context, z open.Sizes) error {
	e.asked = fmt.Sprintf("tp %d", z.TP)
	return e.err
}

func (e *fakeElastic) Scaling() string { return e.what }

// TestElasticWantsFlagOrKey: who merely reaches a server changes nothing of it.
func TestElasticWantsFlagOrKey(t *testing.T) {
	for name, c := range map[string]struct {
		flag bool
		keys []string
		code int
	}{"neither": {false, nil, 403}, "flag": {true, nil, 200}, "key": {false, []string{"k"}, 200}} {
		e := &fakeElastic{}
		s := newServer(t, func(o *Options) {
			o.Elastic, o.Config.Server.EnableElasticEP, o.Config.Server.APIKeys = e, c.flag, c.keys
		})
		for path, body := range map[string]string{"/scale_elastic?dp=2": "",
			"/scale_elastic_ep": `{"new_data_parallel_size":2}`} {
			e.asked = ""
			rec := s.do("POST", path, body, "Authorization", "Bearer k")
			if rec.Code != c.code || (e.asked != "") != (c.code == 200) ||
				c.code == 403 && !strings.Contains(rec.Body.String(), "--enable-elastic-ep") {
				t.Errorf("%s, %s: %d %s", name, path, rec.Code, rec.Body)
			}
		}
	}
}

// TestElastic asks for other engines, in our words and in vLLM's.
func TestElastic(t *testing.T) {
	e := &fakeElastic{}
	s := newServer(t, func(o *Options) { o.Elastic, o.Config.Server.EnableElasticEP = e, true })
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/scale_elastic?dp=3", "", 200, "3 engines within 2m0s"},
		{"/scale_elastic?dp=1&drain_timeout=7", "", 200, "1 engines within 7s"},
		{"/scale_elastic?tp=2", "", 200, "tp 2"},
		{"/scale_elastic_ep", `{"new_data_parallel_size":4}`, 200, "4 engines within 2m0s"},
		{"/scale_elastic_ep", `{"new_data_parallel_size":2,"drain_timeout":5}`, 200,
			"2 engines within 5s"},
		{"/scale_elastic", "", 400, "one of `dp`"},
		{"/scale_elastic?dp=1&tp=2", "", 400, "one of `dp`"},
		{"/scale_elastic?pp=2", "", 400, "--pipeline-parallel-size"},
		{"/scale_elastic?dp=0", "", 400, "`dp` must be an integer between 1 and 1024"},
		{"/scale_elastic?dp=1e9", "", 400, "`dp` must be"},
		{"/scale_elastic?tp=-1", "", 400, "`tp` must be"},
		{"/scale_elastic?dp=2&drain_timeout=-1", "", 400, "`drain_timeout` must be"},
		{"/scale_elastic_ep", `{}`, 400, "`new_data_parallel_size` is required"},
		{"/scale_elastic_ep", `{"new_data_parallel_size":"two"}`, 400, "new_data_parallel_size"},
		{"/scale_elastic_ep", `{"new_data_parallel_size":0}`, 400, "new_data_parallel_size"},
		{"/scale_elastic_ep", `{"new_data_parallel_size":2,"drain_timeout":0}`, 400,
			"drain_timeout"},
		{"/scale_elastic_ep", `[]`, 400, "object"},
	} {
		e.asked = ""
		rec := s.do("POST", c.path, c.body)
		if rec.Code != c.code || !strings.Contains(e.asked+rec.Body.String(), c.want) ||
			(e.asked != "") != (c.code == 200) {
			t.Errorf("%s %s: %d %q %s", c.path, c.body, rec.Code, e.asked, rec.Body)
		}
	}
	for err, want := range map[error]string{
		&open.Refused{Reason: "no room"}: "400 BadRequestError no room",
		fmt.Errorf("%w: from 1 to 2",
			engine.ErrScaling): "409 ConflictError the engines are being", fmt.Errorf("%w after 2m",
			engine.ErrBusy): "408 RequestTimeoutError engines that are",
		engine.ErrStopped: "503 ServiceUnavailableError draining",
		errors.New("engine 1: no such file or directory"): "500 InternalServerError the engines " +
			"stay as they were: engine 1: no",
	} {
		e.err = err
		rec := s.do("POST", "/scale_elastic?dp=2", "")
		got := object(t, rec.Body.Bytes())
		text := fmt.Sprintf("%d %v %v", rec.Code, at(t, got, "error", "type"), at(t, got, "error",
			"message"))
		if !strings.HasPrefix(text, want) {
			t.Errorf("%v: %s, want %s", err, text, want)
		}
	}
	for _, what := range []string{"", "scaling from 1 to 2 engines"} {
		e.what = what
		got := object(t, s.do("POST", "/is_scaling_elastic_ep", "").Body.Bytes())
		if got["is_scaling_elastic_ep"] != (what != "") {
			t.Errorf("%q: %v", what, got)
		}
		if rec := s.do("GET", "/health", ""); rec.Code != 200 ||
			strings.TrimSuffix(rec.Body.String(), "\n") != what {
			t.Errorf("%q: health %d %q", what, rec.Code, rec.Body)
		}
	}
}

// TestElasticNeedsAKey refuses who has none, and a server whose engines are fixed has no such
// routes.
func TestElasticNeedsAKey(t *testing.T) {
	e := &fakeElastic{}
	s := newServer(t, func(o *Options) {
		o.Elastic, o.Config.Server.APIKeys = e, []string{"key"}
	})
	for _, path := range []string{"/scale_elastic?dp=2", "/scale_elastic_ep",
		"/is_scaling_elastic_ep"} {
		if rec := s.do("POST", path, ""); rec.Code != 401 || e.asked != "" {
			t.Errorf("%s without a key: %d, %q", path, rec.Code, e.asked)
		}
		if rec := newServer(t).do("POST", path, ""); rec.Code != 404 {
			t.Errorf("%s of a server with fixed engines: %d", path, rec.Code)
		}
	}
}
