package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wideModel is a folder of a model of a layer that takes one core longer for a prompt of 512 tokens
// than the warning of TestSlowLayer waits.
func wideModel(t *testing.T) string {
	t.Helper()
	const config = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":1024,
		"intermediate_size":10240,"num_attention_heads":16,"num_key_value_heads":4,"num_hidden_layers":1,
		"vocab_size":512,"max_position_embeddings":1024,"rms_norm_eps":1e-6,"torch_dtype":"bfloat16"}`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A rank whose layers take longer than --stall-warning is slow: the server is healthy all the
// while, and ends by a signal only when its request is answered.
func TestSlowLayer(t *testing.T) {
	p, url := startServer(t, wideModel(t), "--load-format", "dummy", "--skip-tokenizer-init",
		"--cpu-threads", "1", "--stall-warning", "0.3", "--no-enable-prefix-caching")
	prompt := strings.TrimSuffix(strings.Repeat("7,", 512), ",")
	ask := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(
				`{"prompt":[`+prompt+`],"max_tokens":2,"ignore_eos":true,"detokenize":false}`))
			if err == nil {
				var body []byte
				body, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil && resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s: %s", resp.Status, body)
				}
			}
			done <- err
		}()
		return done
	}
	ranBefore, waitedBefore := processorTime(p)
	// skipIfDeprived ends the test where the machine let the server wait for a processor for longer
	// than it let it run: then a part of a layer, too, may take longer than the warning waits.
	var ran, waited time.Duration
	look := func() {
		if r, w := processorTime(p); r > 0 {
			ran, waited = r-ranBefore, w-waitedBefore
		}
	}
	skipIfDeprived := func() {
		if look(); waited > ran {
			t.Skipf("the server ran for %v and waited for a processor for %v", ran, waited)
		}
	}
	started := time.Now()
	for done := ask(); done != nil; {
		resp, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			skipIfDeprived()
			t.Fatalf("a slow rank makes the server unhealthy: %s", body)
		}
		select {
		case err := <-done:
			if done = nil; err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	if took := time.Since(started); took < 450*time.Millisecond {
		t.Logf("the request took %v: no layer was slow", took)
	}
	idle, _ := processorTime(p)
	done := ask()
	// One that is on its way to the engine would be rejected when that drains: only a layer takes
	// so much of a processor.
	eventually(t, "the request to be computed", func() bool {
		ran, _ := processorTime(p)
		return ran-idle > 100*time.Millisecond
	})
	look()
	p.signal(syscall.SIGTERM)
	if err := <-done; err != nil {
		t.Errorf("a request in a slow layer was cut: %v", err)
	}
	// Not counting what it said while it loaded, which moves in larger steps.
	_, served, _ := strings.Cut(p.err.String(), "msg=ready")
	if strings.Contains(served, "rank is stalled") {
		skipIfDeprived()
		t.Error("a slow rank is called stalled")
	}
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// processorTime is how long the threads of a program have run, and how long they have waited for a
// processor; 0 when it has ended.
func processorTime(p *program) (ran, waited time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	for _, path := range threads {
		raw, _ := os.ReadFile(path)
		var r, w int64
		if n, _ := fmt.Sscan(string(raw), &r, &w); n == 2 {
			ran, waited = ran+time.Duration(r), waited+time.Duration(w)
		}
	}
	return ran, waited
}

// A rank that is stopped while the server drains loses nothing: whether it goes on, or another one
// takes its place.
func TestDrainStopped(t *testing.T) {
	for name, c := range map[string]struct {
		args      []string
		continues bool
	}{
		"and goes on":     {[]string{"--stall-warning", "0.5"}, true},
		"and is given up": {[]string{"--execute-model-timeout-seconds", "1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tokens = 300
			p, url := startServer(t, append(c.args, "-tp", "2", "--shutdown-timeout", "600")...)
			pids := twoWorkers(t, p)
			events := longStream(t, url, tokens)
			if err := syscall.Kill(pids[1], syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			p.signal(syscall.SIGTERM)
			if c.continues {
				eventually(t, "the stall", func() bool {
					return strings.Contains(p.err.String(),
						"rank is stalled")
				})
				if err := syscall.Kill(pids[1], syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			rest, err := io.ReadAll(events)
			if err != nil || !bytes.Contains(rest, fmt.Appendf(nil, `"completion_tokens":%d`,
				tokens)) {
				t.Errorf("the stream ends with %q, %v", rest[max(0, len(rest)-300):], err)
			}
			if code := p.exit(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			workersEnd(t, pids)
		})
	}
}
