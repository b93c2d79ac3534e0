package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRoute asks a prefill server and two ranks of a decode server through route what one server is
// asked, choices and log-probabilities too, and wants the same; then again after the prefill server
// was killed.
func TestRoute(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("x7", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	transfer := func(role string, args ...string) (*program, string) {
		return startServer(t, append(args, "--cluster-token-file", token, "--kv-transfer-config",
			`{"kv_connector":"EagleRayConnector","kv_role":"`+role+`"}`)...)
	}
	_, one := startServer(t)
	prefill, from := transfer("kv_producer")
	_, to := transfer("kv_consumer", "-tp", "2")
	trace := filepath.Join(t.TempDir(), "trace.json")
	_, url := ready(t, command(t, "", "route", "--port", "0", "--prefill", from, "--decode", to, "--trace",
		trace))
	ask := func(url, body string) (answer struct{ Choices, Error json.RawMessage }) {
		t.Helper()
		r, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil || answer.Choices == nil {
			t.Fatalf("%s: %v", text, err)
		}
		return answer
	}
	same := func(prompt string) {
		t.Helper()
		body := `{"prompt":"` + strings.Repeat(prompt, 12) +
			`","max_tokens":12,"seed":7,"temperature":1,"logprobs":3,"n":2}`
		if got, want := ask(url, body).Choices, ask(one, body).Choices; !bytes.Equal(got, want) {
			t.Errorf("%s\ninstead of\n%s", got, want)
		}
	}
	counts := func() string {
		t.Helper()
		r, err := http.Get(to + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `kv_transfers_total{direction="in"`) {
				lines = append(lines, line[strings.LastIndex(line, "outcome="):])
			}
		}
		return strings.Join(lines, "")
	}
	same("package main opens a file. ")
	if got, want := counts(), "outcome=\"done\"} 1\noutcome=\"lost\"} 0\n"; got != want {
		t.Errorf("transfers:\n%s", got)
	}
	if text, err := os.ReadFile(trace); err != nil || strings.Count(string(text), `"name":"prefill"`) != 1 {
		t.Errorf("the trace is %q, %v", text, err)
	}
	if err := prefill.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	same("func Open returns an error. ")
}
