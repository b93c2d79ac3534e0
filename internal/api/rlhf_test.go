package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// trained is a server for a trainer, over the built-in model.
func trained(t *testing.T, change func(c *config.Config)) *httptest.Server {
	t.Helper()
	c := config.Default()
	c.Cache.MemoryBytes, c.Parallel.CPUThreads = 16<<20, 1
	c.Server.EnableRLHF, c.Server.APIKeys = true, []string{"secret"}
	if change != nil {
		change(&c)
	}
	e, _, err := engine.Open(t.Context(), engine.Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	control, err := rlhf.New(
		rlhf.Options{Engines: func() []*engine.Engine { return []*engine.Engine{e} }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Info: e.Info(), Engine: e, Config: c, Trainer: control})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return h
}

// asked is the answer to a call with the key.
func asked(t *testing.T, h *httptest.Server, call, body string) (status int, version, text string) {
	t.Helper()
	method, path, _ := strings.Cut(call, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer secret")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, a.Header.Get("X-Weight-Version"), string(raw)
}

// TestTrainer goes through the routes in order: what each answers, and what comes of wrong input.
func TestTrainer(t *testing.T) {
	h := trained(t, nil)
	for _, c := range []struct {
		Call, body string
		status     int
		want       string
	}{
		{"GET /is_paused", "", 200, `{"is_paused":false}`},
		{"POST /pause?mode=sometimes", "", 400, "`mode` must be abort, wait or keep"},
		{"POST /pause?mode=wait&clear_cache=false", "", 200, `{"status":"paused"}`},
		{"GET /is_paused", "", 200, `{"is_paused":true}`},
		{"GET /health", "", 503, "generation is paused"},
		{"GET /livez", "", 200, ""},
		{"POST /resume", "", 200, `{"status":"resumed"}`},
		{"GET /health", "", 200, ""},
		{"POST /start_weight_update", "", 409, "call init_weight_transfer_engine first"},
		{"POST /init_weight_transfer_engine", `{"init_info": 3}`, 400,
			"`init_info` must be an object"},
		{"POST /init_weight_transfer_engine", `{"init_info": {}}`, 200, `"session":{"token":"`},
		{"POST /update_weights", `{"update_info": {"path": "/x"}}`, 409,
			"call start_weight_update first"},
		{"POST /start_weight_update", `{"is_checkpoint_format": false}`, 400,
			"`is_checkpoint_format`"},
		{"POST /start_weight_update", "", 200, "started"},
		{"POST /update_weights", "{}", 400, "`update_info` is required"},
		{"POST /update_weights", `{"update_info": {}}`, 400, "either `path` or `stream`"},
		{"POST /update_weights",
			`{"update_info": {"stream": "s", "names": ["a"], "shapes": [[1]]}}`, 400,
			"`update_info.dtype_names` has 0 entries for 1 names"},
		{"POST /update_weights", `{"update_info": {"stream": "s", "names": "a"}}`, 400,
			"`update_info`"},
		{"POST /update_weights",
			`{"update_info": {"stream": "s", "names": ["a"], "shapes": [[1]], ` +
				`"dtype_names": ["int8"]}}`, 400,
			`differ from the model's in 1 tensors: \"a\" is none of the model's`},
		{"POST /finish_weight_update", "", 409,
			"the last one failed (the weights differ from the model's in " +
				`1 tensors: \"a\" is none of the model's); call start_weight_update first`},
		{"POST /start_weight_update", "", 200, "started"},
		{"POST /update_weights", `{"update_info": {"path": "/nowhere"}}`, 400,
			"/nowhere is not below a folder of --allowed-local-weights"},
		{"POST /update_weights", `{"update_info": {"path": "/nowhere"}}`, 409,
			"the last one failed (/nowhere is not"},
		{"POST /update_weight_version", `{"new_version": "a b"}`, 400, "`new_version`"},
		{"POST /update_weight_version", `{"new_version": "v7"}`, 200, `"weight_version":"v7"`},
		{"GET /weight_info", "", 200, `"weight_version":"v7","num_updates":0`},
		{"POST /v1/completions", `{"prompt": "a", "max_tokens": 1}`, 200, `"weight_version":"v7"`},
		{"POST /v1/completions", `{"prompt": "a", "max_tokens": 2, "stream": true}`, 200,
			`"token_ids":null}],"weight_version":"v7"}`},
		{"POST /v1/chat/completions", `{"messages": [{"role": "user", "content": "a"}], ` +
			`"max_tokens": 2, "stream": true}`, 200,
			`"token_ids":null}],"weight_version":"v7"}`},
		{"POST /sleep?level=3", "", 400, "`level` must be an integer between 0 and 2"},
		{"POST /sleep?level=2", "", 200, ""},
		{"POST /resume", "", 409, "the server sleeps; wake it up first"},
		{"POST /wake_up?tags=all", "", 400, "`tags` must be weights or kv_cache"},
		{"POST /wake_up?tags=weights", "", 200, ""},
		{"GET /is_sleeping", "", 200, `{"is_sleeping":true}`},
		{"POST /wake_up?tags=weights&tags=kv_cache", "", 200, ""},
		{"GET /is_sleeping", "", 200, `{"is_sleeping":false}`},
		{"POST /reset_prefix_cache", "", 200, `{"success":true}`},
		{"POST /collective_rpc", `{"method": "weights_swap"}`, 400, "`method` must be one of"},
		{"POST /collective_rpc", `{"method": "echo", "args": ["x"], "timeout": 5}`, 200,
			`{"results":["x"]}`},
		{"GET /get_world_size?include_dp=false", "", 200, `{"world_size":1}`},
		{"POST /abort_requests", `{"request_ids": "x"}`, 400, "`request_ids` must be an array"},
		{"POST /abort_requests", "", 200, `{"status":"aborted"}`},
	} {
		status, version, text := asked(t, h, c.Call, c.body)
		if status != c.status || !strings.Contains(text, c.want) || version == "" {
			t.Errorf("%s %s: %d %s, version %q, want %d %s", c.Call, c.body, status, text, version,
				c.status, c.want)
		}
	}
	r, err := http.Post(h.URL+"/pause", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %d", r.StatusCode)
	}
}

// TestAbortRequests ends the request that is named, with what it has, and no other one.
func TestAbortRequests(t *testing.T) {
	h := trained(t, nil)
	type output struct {
		Choices []struct {
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
	}
	ask := func(id string, most int) <-chan string {
		reason := make(chan string, 1)
		go func() {
			_, _, text := asked(t, h, "POST /v1/completions", fmt.Sprintf(
				`{"prompt": "a", "ignore_eos": true, "max_tokens": %d, "request_id": %q}`, most,
				id))
			var o output
			if err := json.Unmarshal([]byte(text), &o); err != nil || len(o.Choices) != 1 {
				reason <- text
				return
			}
			reason <- o.Choices[0].FinishReason
		}()
		return reason
	}
	if status, _, text := asked(t, h, "POST /pause?mode=keep", ""); status != 200 {
		t.Fatal(text)
	}
	named, other := ask("named", 1500), ask("other", 20)
	for { // the answer comes when the request is there to be named
		if status, _, text := asked(t, h, "POST /abort_requests",
			`{"request_ids": ["named"]}`); status != 200 {
			t.Fatal(text)
		}
		select {
		case got := <-named:
			if got != "abort" {
				t.Errorf("the one that is named ends with %q", got)
			}
		case <-t.Context().Done():
		default:
			continue
		}
		break
	}
	asked(t, h, "POST /resume", "")
	if got := <-other; got != "length" {
		t.Errorf("the other one ends with %q", got)
	}
}

// TestSleepModeAlone has the routes of sleep and no other of a trainer.
func TestSleepModeAlone(t *testing.T) {
	h := trained(t, func(c *config.Config) {
		c.Server.EnableRLHF, c.Server.EnableSleepMode = false, true
	})
	for call, want := range map[string]int{"GET /is_sleeping": 200, "POST /pause": 404,
		"POST /update_weights": 404} {
		if status, version, text := asked(t, h, call, ""); status != want || version != "" {
			t.Errorf("%s: %d %s, version %q", call, status, text, version)
		}
	}
}
