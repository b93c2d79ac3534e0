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

// wideModel is a folder of a model of two layers, each of which takes one core longer for a prompt
// of 512 tokens than the warning of TestSlowLayer waits.
func wideModel(t *testing.T) string {
	t.Helper()
	const config = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":1024,
		"intermediate_size":10240,"num_attention_heads":16,"num_key_value_heads":4,"num_hidden_layers":2,
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
	started, asked := time.Now(), 0
	for done := ask(); done != nil; asked++ {
		resp, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
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
	if took := time.Since(started); took < 900*time.Millisecond {
		t.Logf("the request took %v: no layer was slow", took)
	}
	done := ask()
	eventually(t, "the request to be computed", func() bool {
		resp, err := http.Get(url + "/load")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return !bytes.Contains(body, []byte(`:0}`))
	})
	// A request that is counted may still be on its way to the engine, which rejects it when it
	// drains.
	time.Sleep(200 * time.Millisecond)
	p.signal(syscall.SIGTERM)
	if err := <-done; err != nil {
		t.Errorf("a request in a slow layer was cut: %v", err)
	}
	if code := p.exit(); code != 0 || strings.Contains(p.err.String(), "rank is stalled") {
		t.Errorf("exit code %d", code)
	}
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
			const tokens = 2000
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
