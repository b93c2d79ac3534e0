package ray_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// adapterKey is the key of a server whose adapters may be changed.
const adapterKey = "secret"

// post sends a JSON object to a server with adapterKey.
func post(t testing.TB, url string, body map[string]any) (*http.Response, error) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+adapterKey)
	return http.DefaultClient.Do(req)
}

// told is what a stream of a server said, and when.
type told struct {
	text string
	at   []time.Time
	err  error
}

// longestGap is the longest time between two pieces of a stream.
func (s *told) longestGap() (gap time.Duration) {
	for i := range max(0, len(s.at)-1) {
		gap = max(gap, s.at[i+1].Sub(s.at[i]))
	}
	return gap
}

// within is how many pieces came in a time.
func (s *told) within(from, to time.Time) (n int) {
	for _, at := range s.at {
		if at.After(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// stream asks a model of a server for a stream of tokens.
func stream(t testing.TB, url, model, prompt string, more map[string]any) (s told) {
	body := map[string]any{"model": model, "prompt": prompt, "stream": true}
	for name, value := range more {
		body[name] = value
	}
	resp, err := post(t, url+"/v1/completions", body)
	if err != nil {
		return told{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(resp.Body)
		return told{err: fmt.Errorf("status %d: %s, %v", resp.StatusCode, raw, err)}
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var event struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return told{err: fmt.Errorf("%s: %w", data, err)}
		}
		for _, c := range event.Choices {
			s.text += c.Text
			s.at = append(s.at, time.Now())
		}
	}
	s.err = lines.Err()
	return s
}

// TestAdapterUnderLoad loads an adapter into a server whose four ranks, of two stages that each two
// share, are on three nodes, while streams run: what is asked of it then is what one rank without
// Ray says that has had it from its start, and the streams say what they say undisturbed, and go on
// meanwhile. It is unloaded in the same way.
func TestAdapterUnderLoad(t *testing.T) {
	shapes, err := loratest.ShapesOf(builtin.Folder())
	if err != nil {
		t.Fatal(err)
	}
	adapter := filepath.Join(t.TempDir(), "adapter")
	if err := loratest.Write(adapter, shapes, loratest.Options{Rank: 16, Seed: 1,
		Width: 0.2}); err != nil {
		t.Fatal(err)
	}
	const question = "Package bytes implements"
	alone := func(more ...string) string {
		args := append([]string{"generate", "--raw", "--temperature", "0", "--max-tokens", "48"},
			more...)
		out, err := exec.CommandContext(t.Context(), program(t), append(args, question)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	want := alone("--lora-path", adapter)
	if base := alone(); want == "" || want == base {
		t.Fatalf("with the adapter %q, without %q", want, base)
	}
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		node := raytest.NodeSpec{CPUs: 1, GPUs: 1}
		c := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{
			{CPUs: 1, GPUs: 2}, node, node}})
		s := &site{Cluster: c, observer: startObserver(t, c)}
		defer s.observer.end()
		p := s.serve(t, "", nil, "-tp", "2", "-pp", "2", "--enable-lora", "--max-lora-rank", "16",
			"--api-key", adapterKey, "--allowed-local-weights", filepath.Dir(adapter),
			"--served-model-name", "base")
		url := p.url(t)
		if line := p.log.line(`msg="ray identify"`); strings.Count(line, "/") < 4 {
			t.Errorf("ranks are at %s", line)
		}
		for _, n := range c.Nodes {
			if line := p.log.line(`msg="ray identify"`); !strings.Contains(line, n.IP+"/") {
				t.Errorf("no rank is on %s: %s", n.IP, line)
			}
		}
		const streams = 6
		run := func(meanwhile func()) []told {
			all := make([]told, streams)
			var wg sync.WaitGroup
			for i := range all {
				wg.Go(func() {
					all[i] = stream(t, url, "base", question, map[string]any{"max_tokens": 1500,
						"temperature": 0.8, "seed": i, "ignore_eos": true})
				})
			}
			eventually(t, "streams", func() bool {
				return requests(t, url) == streams
			})
			meanwhile()
			if n := requests(t, url); n != streams {
				t.Errorf("%d of %d streams still run: nothing is shown", n, streams)
			}
			wg.Wait()
			return all
		}
		undisturbed := run(func() {})
		change := func(route string) (from, to time.Time) {
			from = time.Now()
			resp, err := post(t, url+route, map[string]any{"lora_name": "new",
				"lora_path": adapter})
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: status %d: %s, %v", route, resp.StatusCode, raw, err)
			}
			return from, time.Now()
		}
		ask := func() told {
			return stream(t, url, "new", question, map[string]any{"max_tokens": 48,
				"temperature": 0})
		}
		if got := ask(); got.err == nil || !strings.Contains(got.err.Error(), "status 404") {
			t.Errorf("before it is loaded: %q, %v", got.text, got.err)
		}
		var loaded, end time.Time
		for i, got := range run(func() {
			loaded, end = change("/v1/load_lora_adapter")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if got := ask(); got.err != nil || strings.TrimSpace(got.text) != want {
						t.Errorf("the adapter says %q, %v, want %q", got.text, got.err, want)
					}
				})
			}
			wg.Wait()
			change("/v1/unload_lora_adapter")
		}) {
			calm := &undisturbed[i]
			if got.err != nil || calm.err != nil || got.text != calm.text || got.text == "" {
				t.Errorf("stream %d: %v, %v\n%q\nundisturbed\n%q", i, got.err, calm.err, got.text,
					calm.text)
				continue
			}
			t.Logf("stream %d: %d pieces in the %v of the load, longest gap %v, undisturbed %v", i,
				got.within(loaded, end), end.Sub(loaded), got.longestGap(), calm.longestGap())
			// A pause of all ranks would be seen; what the machine does beside the test must not.
			if gap := got.longestGap(); gap > max(time.Second, 4*calm.longestGap()) {
				t.Errorf("stream %d paused for %v, undisturbed for %v", i, gap, calm.longestGap())
			}
		}
		if got := ask(); got.err == nil || !strings.Contains(got.err.Error(), "status 404") {
			t.Errorf("after it is unloaded: %q, %v", got.text, got.err)
		}
		p.signal(t, syscall.SIGTERM)
		if code := p.exit(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		s.clean(t)
	})
}
