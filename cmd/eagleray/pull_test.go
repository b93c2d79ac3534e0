package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repoCommit is the commit of repos that serveRepo has.
const repoCommit = "0123456789abcdef0123456789abcdef01234567"

// serveRepo is a Hub that has one repo: files of a folder.
func serveRepo(t *testing.T, repo, folder string, files ...string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/"+repo+"/revision/main",
		func(w http.ResponseWriter, _ *http.Request) {
			siblings := []map[string]string{}
			for _, name := range files {
				siblings = append(siblings, map[string]string{"rfilename": name})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"sha": repoCommit, "siblings": siblings})
		})
	mux.HandleFunc("/"+repo+"/resolve/"+repoCommit+"/{name}",
		func(w http.ResponseWriter, r *http.Request) {
			name := r.PathValue("name")
			w.Header().Set("X-Repo-Commit", repoCommit)
			w.Header().Set("ETag", fmt.Sprintf("%q", "etag-of-"+strings.ReplaceAll(name, ".", "-")))
			http.ServeFile(w, r, filepath.Join(folder, name))
		})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// onHub is the environment of a user of a Hub, whose files are kept below home.
func onHub(url, home string) []string {
	return []string{"HF_HOME=" + home, "HF_HUB_CACHE=", "HF_ENDPOINT=" + url, "HF_TOKEN=",
		"HF_HUB_OFFLINE="}
}

// TestPullListRemove downloads the files of a model from a Hub, serves them without it, lists them
// and removes them.
func TestPullListRemove(t *testing.T) {
	t.Parallel()
	from := filepath.Join("..", "..", "testdata", "models", "qwen3-tiny")
	files := []string{"config.json", "generation_config.json", "model.safetensors"}
	server := serveRepo(t, "org/tiny", from, files...)
	home := t.TempDir()
	run := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		p := command(t, "", args...)
		p.cmd.Env = append(p.cmd.Env, onHub(server.URL, home)...)
		if code := p.start().exit(); code != want {
			t.Fatalf("%q: exit code %d, printed %q, errors %q", args, code, p.out.String(),
				p.err.String())
		}
		return p.out.String(), p.err.String()
	}
	out, _ := run(0, "pull", server.URL+"/org/tiny")
	cached := filepath.Join(home, "hub", "models--org--tiny")
	if want := filepath.Join(cached, "snapshots", repoCommit) + "\n"; out != want {
		t.Errorf("pull printed %q, want %q", out, want)
	}
	var bytes int64 = 40 // of the reference
	for _, name := range files {
		info, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Size()
	}
	server.Close()
	out, _ = run(0, "list")
	if lines := strings.Split(out, "\n"); len(lines) != 3 ||
		!strings.HasPrefix(lines[0], "NAME") || strings.Join(strings.Fields(lines[1]), " ") !=
		"org/tiny "+gigabytes(bytes)+" moments ago" {
		t.Errorf("list printed %q", out)
	}
	var listed []repoJSON
	out, _ = run(0, "ls", "--json")
	if err := json.Unmarshal([]byte(out), &listed); err != nil || len(listed) != 1 ||
		listed[0].Dir != cached || listed[0].Bytes != bytes {
		t.Errorf("list --json printed %q: %v", out, err)
	}
	out, _ = run(0, "serve", cached, "--check", "--skip-tokenizer-init")
	if !strings.Contains(out, "checked: flags, config.json (qwen3, ") {
		t.Errorf("the cache's folder is checked as %q", out)
	}
	if out, _ := run(0, "__complete", "rm", "or"); !strings.HasPrefix(out, "org/tiny\n") {
		t.Errorf("completed as %q", out)
	}
	out, _ = run(0, "rm", "org/tiny")
	if want := "removed org/tiny: " + gigabytes(bytes) + " are free again\n"; out != want {
		t.Errorf("rm printed %q, want %q", out, want)
	}
	if _, said := run(exitError, "rm", "org/tiny"); !strings.Contains(said, "not in the cache") {
		t.Errorf("errors %q", said)
	}
	if out, _ := run(0, "list", "--json"); out != "[]\n" {
		t.Errorf("what is left: %q", out)
	}
}
