package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
)

// TestLoraPath has the commands whose requests come from one place ask an adapter, and refuse flags
// that nothing would come of.
func TestLoraPath(t *testing.T) {
	t.Parallel()
	adapter := writeAdapter(t)
	question := []string{"generate", "--raw", "--temperature", "0", "--max-tokens", "12",
		"package main"}
	base, adapted := invoke(t, question, 0, ""), invoke(t, append(question[:6:6],
		"--lora-path", adapter, "package main"), 0, "")
	if base == "" || base == adapted {
		t.Errorf("without an adapter %q, with one %q", base, adapted)
	}
	bench := []string{"bench", "throughput", "--num-prompts", "2", "--input-len", "4",
		"--output-len", "4"}
	invoke(t, append(bench[:len(bench):len(bench)], "--lora-path", adapter), 0, "")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing asks": {append(bench, "--enable-lora"),
			"--enable-lora: say --lora-path"},
		"no folder": {[]string{"generate", "--lora-path", "/no/such/folder", "x"},
			"/no/such/folder"},
		"two ways": {[]string{"generate", "--lora-path", adapter, "--lora-modules", "a=/b", "x"},
			"--lora-modules beside --lora-path"},
		"a server's": {[]string{"chat", "--url", "http://127.0.0.1:1", "--lora-path", adapter},
			"--lora-path with --url"},
	} {
		t.Run(name, func(t *testing.T) {
			code := exitUsage
			if name == "no folder" {
				code = exitError
			}
			invoke(t, c.args, code, c.want)
		})
	}
}

// writeAdapter writes an adapter of the built-in model and returns its folder.
func writeAdapter(t *testing.T) string {
	t.Helper()
	shapes, err := loratest.ShapesOf(builtin.Folder())
	if err != nil {
		t.Fatal(err)
	}
	adapter := t.TempDir()
	if err := loratest.Write(adapter, shapes, loratest.Options{Rank: 4, Seed: 1,
		Width: 0.3}); err != nil {
		t.Fatal(err)
	}
	return adapter
}

// TestHubResolver asks a server for an adapter by the name of its repo: it is downloaded at the
// first request, answers as one of a folder does, and is listed. Repos that the Hub has not, or of
// another organisation, are no models.
func TestHubResolver(t *testing.T) {
	t.Parallel()
	adapter := writeAdapter(t)
	hub := serveRepo(t, "org/adapter", adapter, lora.ConfigFile, lora.WeightsFile)
	for _, resolver := range []string{"hub", "hub:org"} {
		t.Run(resolver, func(t *testing.T) {
			p := command(t, "", "serve", "--port", "0", "--kv-cache-memory-bytes", "64M",
				"--enable-lora", "--lora-resolver", resolver, "--lora-modules", "here="+adapter)
			p.cmd.Env = append(p.cmd.Env, onHub(hub.URL, t.TempDir())...)
			_, url := ready(t, p)
			ask := func(name string, want int) (text string) {
				t.Helper()
				code, answer := posted(t, url+"/v1/completions", `{"model": "`+name+
					`", "prompt": "package main", "max_tokens": 12, "temperature": 0}`)
				if code != want {
					t.Fatalf("%s: %d %s", name, code, answer)
				}
				var a struct{ Choices []struct{ Text string } }
				if err := json.Unmarshal([]byte(answer), &a); err != nil {
					t.Fatal(err)
				}
				if len(a.Choices) > 0 {
					text = a.Choices[0].Text
				}
				return text
			}
			base, want := ask("go-std-tiny", 200), ask("here", 200)
			if got := ask("org/adapter", 200); got != want || got == base {
				t.Errorf("the repo's answers %q, the folder's %q, none %q", got, want, base)
			}
			for _, name := range []string{"org/other", "others/adapter"} {
				ask(name, 404)
			}
			resp, err := http.Get(url + "/v1/models")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if list, err := io.ReadAll(resp.Body); err != nil ||
				!strings.Contains(string(list), `"id":"org/adapter"`) {
				t.Errorf("models are %s: %v", list, err)
			}
		})
	}
}

// invoke runs the program and returns what it printed.
func invoke(t *testing.T, args []string, code int, want string) string {
	t.Helper()
	p := command(t, "", args...).start()
	if got := p.exit(); got != code || !strings.Contains(p.err.String(), want) {
		t.Fatalf("%v: exit code %d, want %d; %s", args, got, code, p.err.String())
	}
	return p.out.String()
}
