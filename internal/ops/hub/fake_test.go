package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	testRepo   = "org/model-1.0"
	testCommit = "0123456789abcdef0123456789abcdef01234567"
	testToken  = "hf_secret"
)

// fakeHub is a Hub with one repository. Small files are served by the Hub itself and named by their
// git hash; those that end in .safetensors are named by their SHA-256 and served by a second
// server, the content delivery network.
type fakeHub struct {
	t        *testing.T
	hub, cdn *httptest.Server

	mu       sync.Mutex
	commit   string
	files    map[string][]byte
	requests []string // "HUB GET /path bytes=5-"
	leaks    []string // requests to the network that carried a token

	// intercept may answer a request itself; it is called with the server's name and returns
	// whether it did.
	intercept func(server string, w http.ResponseWriter, r *http.Request) bool
}

func newFakeHub(t *testing.T, files map[string][]byte) *fakeHub {
	f := &fakeHub{t: t, commit: testCommit, files: files}
	f.hub = httptest.NewServer(f.handler("HUB", f.serveHub))
	f.cdn = httptest.NewServer(f.handler("CDN", f.serveCDN))
	t.Cleanup(f.hub.Close)
	t.Cleanup(f.cdn.Close)
	// The environment in which the tests run must not matter, least of all a real token in it.
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
		"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE",
		"TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", filepath.Join(t.TempDir(), "hf"))
	return f
}

func (f *fakeHub) handler(server string, serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", server,
			r.Method, r.URL.Path, r.Header.Get("Range"))))
		if server == "CDN" && r.Header.Get("Authorization") != "" {
			f.leaks = append(f.leaks, r.URL.Path)
		}
		intercept := f.intercept
		f.mu.Unlock()
		if intercept == nil || !intercept(server, w, r) {
			serve(w, r)
		}
	})
}

func (f *fakeHub) content(name string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, ok := f.files[name]
	return data, ok
}

func etagOf(name string, data []byte) string {
	if strings.HasSuffix(name, ".safetensors") {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	sum, _ := gitBlobHash(bytes.NewReader(data), int64(len(data)))
	return sum
}

func (f *fakeHub) serveHub(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	commit := f.commit
	var names []string
	for name := range f.files {
		names = append(names, name)
	}
	f.mu.Unlock()
	if strings.HasPrefix(r.URL.Path, "/api/models/"+testRepo+"/revision/") {
		slices.Sort(names)
		siblings := []map[string]string{}
		for _, name := range names {
			siblings = append(siblings, map[string]string{"rfilename": name})
		}
		json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings,
			"tags": []string{"x"}})
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/"+testRepo+"/resolve/"+commit+"/")
	data, known := f.content(name)
	if !ok || !known {
		w.Header().Set(headerCode, "EntryNotFound")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set(headerCommit, commit)
	if strings.HasSuffix(name, ".safetensors") {
		w.Header().Set(headerETag, `"`+etagOf(name, data)+`"`)
		w.Header().Set(headerSize, fmt.Sprint(len(data)))
		http.Redirect(w, r, f.cdn.URL+"/"+name+"?signature=1", http.StatusFound)
		return
	}
	w.Header().Set("ETag", `"`+etagOf(name, data)+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}

func (f *fakeHub) serveCDN(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	data, _ := f.content(name)
	w.Header().Set("ETag", `"another server's"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}

// count is how many requests have begun so.
func (f *fakeHub) count(prefix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return begunSo(f.requests, prefix)
}

func begunSo(requests []string, prefix string) (n int) {
	for _, r := range requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

func (f *fakeHub) options() Options {
	return Options{Endpoint: f.hub.URL + "/", firstWait: time.Millisecond,
		Warn: func(m string) { f.t.Log("warning: " + m) }}
}

func (f *fakeHub) resolve(opt Options) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return Resolve(ctx, testRepo, opt)
}

func (f *fakeHub) mustResolve(opt Options) string {
	f.t.Helper()
	dir, err := f.resolve(opt)
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// checkFolder compares a snapshot with what it should hold.
func checkFolder(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := want[e.Name()]; !ok {
			t.Errorf("%s should not be there", e.Name())
		}
	}
	for name, data := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got,
			data) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(data), err)
		}
	}
}

// leftovers lists what in the cache is neither a whole blob, a link, a reference nor a lock.
func leftovers(t *testing.T, cache string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(cache, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".incomplete") ||
			strings.HasSuffix(path, ".link") || strings.Contains(path, ".ref-")) {
			found = append(found, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// pattern is n bytes that do not repeat soon.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 2654435761 >> 7)
	}
	return b
}

// pick is the named files of all.
func pick(all map[string][]byte, names ...string) map[string][]byte {
	picked := map[string][]byte{}
	for _, name := range names {
		picked[name] = all[name]
	}
	return picked
}
