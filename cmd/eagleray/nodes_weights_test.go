package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin/builtintest"
)

// steer asks a route of a trainer.
func steer(t *testing.T, url, route string, body map[string]any) (status int, text string) {
	t.Helper()
	if body == nil {
		body = map[string]any{}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+route, "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// said is an answer of 30 tokens, and the version of the weights that it was computed by.
func said(t *testing.T, url string) (text, version string) {
	t.Helper()
	status, raw := steer(t, url, "/v1/completions",
		map[string]any{"prompt": "Package bytes implements",
			"max_tokens": 30, "temperature": 0, "ignore_eos": true})
	var answer struct {
		Choices       []struct{ Text string }
		WeightVersion string `json:"weight_version"`
	}
	if err := json.Unmarshal([]byte(raw), &answer); err != nil || len(answer.Choices) != 1 {
		t.Fatalf("status %d: %s", status, raw)
	}
	return answer.Choices[0].Text, answer.WeightVersion
}

// TestNodesWeights updates the weights of ranks of two nodes. A broken update leaves the old ones;
// a rank of the other node that is killed, and that node when it is started again, come back with
// those of the update and not with the model's own; a stream that began before goes on to its end.
func TestNodesWeights(t *testing.T) {
	t.Parallel()
	_, alone := startServer(t)
	own, _ := said(t, alone)
	c := newCluster(t, "-tp", "2", "--nnodes", "2", "--enable-rlhf", "--allowed-local-weights",
		os.TempDir())
	other := c.node("1").start()
	zero, url := ready(t, c.zero())
	other.says("serving")
	if text, version := said(t, url); text != own || version != "0" {
		t.Fatalf("version %s answers %q, one process %q", version, text, own)
	}
	path := builtintest.OtherWeights(t, "../../internal/rank/builtin")
	ask := func(route string, body map[string]any) {
		t.Helper()
		if status, text := steer(t, url, route, body); status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", route, status, text)
		}
	}
	const tokens = 400
	events := longStream(t, url, tokens)
	ask("/init_weight_transfer_engine", map[string]any{"init_info": map[string]any{}})
	ask("/pause?mode=keep", nil)
	ask("/start_weight_update", nil)
	ask("/update_weights", map[string]any{"update_info": map[string]any{"path": path}})
	ask("/finish_weight_update", map[string]any{"weight_version": "other"})
	ask("/resume", nil)
	want, version := said(t, url)
	if version != "other" || want == own {
		t.Errorf("version %s answers %q, before %q", version, want, own)
	}
	same := func(when string) {
		t.Helper()
		if text, version := said(t, url); text != want || version != "other" {
			t.Errorf("%s: version %s answers %q, want %q", when, version, text, want)
		}
	}
	ask("/start_weight_update", nil)
	cut := filepath.Join(t.TempDir(), "cut.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, raw[:len(raw)-1000], 0o600); err != nil {
		t.Fatal(err)
	}
	if status, text := steer(t, url, "/update_weights", map[string]any{
		"update_info": map[string]any{"path": cut}}); status != http.StatusBadRequest {
		t.Errorf("a file that is cut: status %d: %s", status, text)
	}
	same("after a broken update")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(workers(t, other.cmd.Process.Pid)[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	same("after a rank was killed")
	if err := other.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	other.exit()
	zero.says("is gone")
	other = c.node("1").start()
	same("after a node was killed")
	rest, err := io.ReadAll(events)
	if err != nil || !bytes.Contains(rest, fmt.Appendf(nil, `"completion_tokens":%d`, tokens)) ||
		!strings.Contains(string(rest), `"weight_version":"other"`) {
		t.Errorf("the stream ends with %q, %v", rest[max(0, len(rest)-300):], err)
	}
	zero.stops()
	other.ends(0, "ended: node 0 has ended")
}
