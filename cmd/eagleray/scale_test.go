package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// named is what the events of one stream have of their own.
var named = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+`)

// TestScaleUnderLoad changes the number of engines and their layout while requests run, streams and
// others: none is lost, and each has the bytes that it has of a server of a fixed size.
func TestScaleUnderLoad(t *testing.T) {
	t.Parallel()
	changes := 5
	if !testing.Short() {
		changes = 50
	}
	_, url := startServer(t, "--enable-elastic-ep")
	ask := func(seed int, stream bool) (string, error) {
		body := fmt.Sprintf(`{"prompt":"package main","max_tokens":60,"ignore_eos":true,"temperature":1,
			"seed":%d,"n":2,"logprobs":1,"stream":%v}`, seed, stream)
		q, err := http.NewRequest("POST", url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			return "", err
		}
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("X-Eagleray-Resume", "begin") // the bytes do not depend on timing
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %s", r.StatusCode, text)
		}
		return named.ReplaceAllString(string(text), ""), err
	}
	var want []string
	for c := range 4 {
		text, err := ask(c, c%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, text)
	}
	t.Logf("%d changes", changes)
	underLoad(t, want, func(c int) (string, error) { return ask(c, c%2 == 0) }, func() {
		way := []string{"dp=2", "tp=2", "dp=3", "dp=1", "tp=1"}
		for i := range changes {
			if code, answer := posted(t, url+"/scale_elastic?"+way[i%len(way)], ""); code != 200 {
				t.Fatalf("change %d, %s: %d %s", i, way[i%len(way)], code, answer)
			}
		}
	})
}

// underLoad has clients ask again and again while something is changed: none is lost, and each is
// answered what it wants.
func underLoad(t *testing.T, want []string, ask func(client int) (string, error), change func()) {
	t.Helper()
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	answers := make([]int, len(want))
	for c := range want {
		asking.Go(func() {
			for ; ctx.Err() == nil; answers[c]++ {
				if got, err := ask(c); err != nil || got != want[c] {
					t.Errorf("client %d: %v, %s\ninstead of\n%s", c, err, got, want[c])
					return
				}
			}
		})
	}
	change()
	stop()
	asking.Wait()
	t.Logf("answers of each client %v, 0 lost, 0 different", answers)
}

// TestScaleBeside changes engines beside what else is done to them: other changes, a pause, sleep,
// and a client that goes away.
func TestScaleBeside(t *testing.T) {
	t.Parallel()
	want := onePiece(t)
	_, url := startServer(t, "--enable-rlhf", "--enable-sleep-mode", "--api-key", "key",
		"--allowed-local-weights", "../../testdata/models")
	send := func(ctx context.Context, method, path, body string) (int, string) {
		q, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Authorization", "Bearer key")
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return 0, err.Error()
		}
		return r.StatusCode, string(text)
	}
	do := func(path string, code int, says string) {
		t.Helper()
		if got, answer := send(t.Context(), "POST", path, ""); got != code ||
			!strings.Contains(answer, says) {
			t.Errorf("%s: %d %s", path, got, answer)
		}
	}
	ask := func() (int, string) { return send(t.Context(), "POST", "/v1/completions", drawn) }
	same := func(when string, code int, answer string) {
		t.Helper()
		if code != 200 || choices(t, answer) != want {
			t.Errorf("%s: %d %s", when, code, answer)
		}
	}
	do("/scale_elastic?pp=2", 400, "--pipeline-parallel-size")
	do("/scale_elastic?tp=3", 400, "--tensor-parallel-size 3")
	for _, query := range []string{"dp=2", "tp=2"} {
		do("/pause?mode=keep", 200, "")
		var code int
		var answer string
		var held sync.WaitGroup
		held.Go(func() { code, answer = ask() })
		do("/scale_elastic?"+query, 200, "")
		do("/resume", 200, "")
		held.Wait()
		same("held over "+query, code, answer)
	}
	do("/sleep?level=1", 200, "")
	do("/scale_elastic?dp=3", 200, "")
	do("/wake_up", 200, "")
	code, answer := ask()
	same("an engine that was added while others slept", code, answer)

	// An update of the weights, here by the very ones, has them in engines that come within it,
	// too.
	model, err := filepath.Abs("../../testdata/models/go-std-tiny")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ path, body string }{{"/init_weight_transfer_engine", "{}"},
		{"/pause?mode=keep", ""}, {"/start_weight_update", "{}"},
		{"/update_weights", fmt.Sprintf(`{"update_info":{"path":%q}}`, model)},
		{"/scale_elastic?dp=2", ""},
		{"/scale_elastic?dp=3", ""}, {"/finish_weight_update", "{}"}, {"/resume", ""}} {
		if code, answer := send(t.Context(), "POST", step.path, step.body); code != 200 {
			t.Fatalf("%s: %d %s", step.path, code, answer)
		}
	}
	version := regexp.MustCompile(`"weight_version":"[^"]*"`)
	versions := map[string]bool{}
	for range 6 { // by turns
		code, answer = ask()
		same("after an update", code, answer)
		versions[version.FindString(answer)] = true
	}
	if len(versions) != 1 {
		t.Errorf("engines have the weights %v", versions)
	}

	var at sync.WaitGroup
	codes := make([]int, 6)
	for i := range codes {
		at.Go(func() {
			codes[i], _ = send(t.Context(), "POST", fmt.Sprintf("/scale_elastic?dp=%d",
				2+i%2), "")
		})
	}
	at.Wait()
	done := 0
	for _, code := range codes {
		if code == 200 {
			done++
		} else if code != http.StatusConflict {
			t.Errorf("changes at the same time: %v", codes)
		}
	}
	if done == 0 {
		t.Errorf("no change is made: %v", codes)
	}
	engines := func() int {
		_, text := send(t.Context(), "GET", "/debug/ranks", "")
		return strings.Count(text, `"pid"`) / 2 // of two ranks
	}
	before := engines()
	ctx, gone := context.WithCancel(t.Context())
	var leaving sync.WaitGroup
	leaving.Go(func() { send(ctx, "POST", fmt.Sprintf("/scale_elastic?dp=%d", before+1), "") })
	eventually(t, "the change that goes on without its client", func() bool {
		if _, text := send(t.Context(), "GET", "/is_scaling_elastic_ep", ""); strings.Contains(text,
			"true") {
			gone()
		}
		return engines() == before+1
	})
	gone()
	leaving.Wait()
	eventually(t, "its end", func() bool {
		_, text := send(t.Context(), "GET", "/is_scaling_elastic_ep", "")
		return strings.Contains(text, "false")
	})
	code, answer = ask()
	same("at the end", code, answer)
}
