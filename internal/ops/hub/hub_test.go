package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// plainRepo is a repository of one weight file, with files that no engine needs.
func plainRepo() map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{"model_type":"llama"}`), "generation_config.json": []byte(`{}`),
		"tokenizer.json":  pattern(300_000),
		"tokenizer.model": pattern(100), "merges.txt": []byte("a b"),
		"chat_template.jinja": []byte("{{ x }}"), "vocab.json": {},
		"model.safetensors": pattern(3_000_000), "pytorch_model.bin": pattern(9),
		"pytorch_model.bin.index.json": []byte("{}"), "consolidated.safetensors": pattern(9),
		"README.md": []byte("#"), "onnx/model.onnx": pattern(9),
		"original/params.json": []byte("{}"), ".gitattributes": []byte("*"),
		"model.gguf": pattern(9),
	}
}

var plainWanted = []string{"config.json", "generation_config.json", "tokenizer.json",
	"tokenizer.model", "merges.txt", "chat_template.jinja", "vocab.json", "model.safetensors"}

func TestDownload(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	opt := f.options()
	var last Progress
	opt.Progress = func(p Progress) {
		if p.Done < 0 || p.Done > p.Total || p.AllDone < p.Done || p.AllDone > p.AllTotal {
			t.Errorf("progress %+v", p)
		}
		last = p
	}
	dir := f.mustResolve(opt)
	cache := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--model-1.0")
	if want := filepath.Join(cache, "snapshots", testCommit); dir != want {
		t.Errorf("folder %s, want %s", dir, want)
	}
	checkFolder(t, dir, pick(repo, plainWanted...))
	if last.File != "model.safetensors" || last.Done != 3_000_000 || last.AllDone != last.AllTotal {
		t.Errorf("last progress %+v", last)
	}
	if ref, err := os.ReadFile(filepath.Join(cache, "refs", "main")); err != nil ||
		string(ref) != testCommit {
		t.Errorf("reference %q, %v", ref, err)
	}
	for _, name := range plainWanted {
		want := filepath.Join("..", "..", "blobs", etagOf(name, repo[name]))
		if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != want {
			t.Errorf("%s links to %q, want %q: %v", name, target, want, err)
		}
	}
	if left := leftovers(t, os.Getenv("HF_HOME")); left != nil {
		t.Errorf("left over: %v", left)
	}
	for _, name := range []string{"pytorch_model.bin", "consolidated.safetensors", "original",
		"onnx"} {
		if f.count("HUB HEAD /"+testRepo+"/resolve/"+testCommit+"/"+name) > 0 {
			t.Errorf("%s was asked for", name)
		}
	}
	// The second time only the list of files is asked for.
	before := f.count("")
	if again := f.mustResolve(opt); again != dir || f.count("") != before+1 {
		t.Errorf("second time: %s, %d requests", again, f.count("")-before)
	}
}

func shardedRepo() map[string][]byte {
	repo := map[string][]byte{"config.json": []byte(`{}`), "tokenizer.json": []byte(`{}`),
		"unused.safetensors": pattern(5)}
	index := `{"metadata":{"total_size":1},"weight_map":{`
	for i := range 7 {
		name := fmt.Sprintf("model-%05d-of-00007.safetensors", i+1)
		repo[name] = pattern(100_000 + i)
		index += fmt.Sprintf(`"a%d":%q,"b%d":%q,`, i, name, i, name)
	}
	repo[weightIndex] = []byte(strings.TrimSuffix(index, ",") + "}}")
	return repo
}

func TestSharded(t *testing.T) {
	repo := shardedRepo()
	f := newFakeHub(t, repo)
	dir := f.mustResolve(f.options())
	delete(repo, "unused.safetensors")
	checkFolder(t, dir, repo)
}

func TestLocalFolder(t *testing.T) {
	f := newFakeHub(t, nil)
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(testRepo, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir := f.mustResolve(f.options()); dir != testRepo || f.count("") != 0 {
		t.Errorf("%s, %d requests", dir, f.count(""))
	}
	if err := os.WriteFile("file.bin", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"file.bin": `model "file.bin" is a file`, "./gone": `"./gone": no such file`,
		"/gone/model": `"/gone/model": no such file`,
		"model.gguf":  `model "model.gguf": no such file`, "org/Model.GGUF": "no such file",
		"weights.safetensors": "no such file", "~/gone": "no such file", "a/b/c": "no such file",
		"": "neither a folder nor", "nobody/": "neither a folder nor",
		"org/na me": "neither a folder nor", "org/a--b": "neither a folder nor",
		"org/a..b": "neither a folder nor", "org/a.git": "neither a folder nor",
		"org/-a": "neither a folder nor", "org/" + strings.Repeat("a", 100): "at most 96",
		"org/a\x00": "neither a folder nor", "org/a%2fb": "neither a folder nor",
	} {
		if dir, err := Resolve(context.Background(), model, f.options()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("model %q: %q, %v; want %q", model, dir, err, want)
		}
	}
	if f.count("") != 0 {
		t.Error("the Hub was asked for a name that is none")
	}
}

func TestRevision(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	opt := f.options()
	opt.Revision = "refs/pr/1"
	dir := f.mustResolve(opt)
	ref := filepath.Join(filepath.Dir(filepath.Dir(dir)), "refs", "refs", "pr", "1")
	if raw, err := os.ReadFile(ref); err != nil || string(raw) != testCommit {
		t.Errorf("reference %q, %v", raw, err)
	}
	if f.count("HUB GET /api/models/"+testRepo+"/revision/refs/pr/1") != 1 {
		t.Errorf("requests %v", f.requests)
	}
	opt.Revision = testCommit
	if again := f.mustResolve(opt); again != dir {
		t.Errorf("by commit: %s", again)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(filepath.Dir(dir)), "refs",
		testCommit)); err == nil {
		t.Error("a commit has got a reference")
	}
	for _, bad := range []string{"..", "a/../b", "/a", "a/", "a b", "-a", ".a", "a\n",
		strings.Repeat("a", 201)} {
		opt.Revision = bad
		if _, err := f.resolve(opt); err == nil || !strings.Contains(err.Error(), "revision") {
			t.Errorf("revision %q: %v", bad, err)
		}
	}
}

// TestNewCommit lets the branch move: the new snapshot shares what has not changed.
func TestNewCommit(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	old := f.mustResolve(f.options())
	f.mu.Lock()
	f.commit = strings.Repeat("b", 40)
	f.files = maps.Clone(repo)
	f.files["config.json"] = []byte("changed")
	f.mu.Unlock()
	before := f.count("CDN")
	dir := f.mustResolve(f.options())
	checkFolder(t, dir, pick(f.files, plainWanted...))
	checkFolder(t, old, pick(repo, plainWanted...))
	if f.count("CDN") != before {
		t.Error("weights that have not changed were downloaded again")
	}
}

func TestEnvironment(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	opt := f.options()
	opt.Endpoint = ""
	t.Setenv("HF_ENDPOINT", f.hub.URL)
	root := t.TempDir()
	t.Setenv("HF_HUB_CACHE", filepath.Join(root, "by-cache"))
	if dir := f.mustResolve(opt); !strings.HasPrefix(dir, filepath.Join(root, "by-cache",
		"models--")) {
		t.Errorf("HF_HUB_CACHE: %s", dir)
	}
	opt.DownloadDir = filepath.Join(root, "by-option")
	if dir := f.mustResolve(opt); !strings.HasPrefix(dir, filepath.Join(root, "by-option",
		"models--")) {
		t.Errorf("DownloadDir: %s", dir)
	}
	opt.DownloadDir = ""
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_HOME", "")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(root, "xdg"))
	if dir := f.mustResolve(opt); !strings.HasPrefix(dir, filepath.Join(root, "xdg", "huggingface",
		"hub", "models--")) {
		t.Errorf("XDG_CACHE_HOME: %s", dir)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", filepath.Join(root, "home"))
	if dir := f.mustResolve(opt); !strings.HasPrefix(dir, filepath.Join(root, "home", ".cache",
		"huggingface", "hub", "models--")) {
		t.Errorf("HOME: %s", dir)
	}
	for _, bad := range []string{"ftp://host", "host", "http://", "http://user:pass@host",
		"http://ho st"} {
		opt.Endpoint = bad
		if _, err := f.resolve(opt); err == nil || !strings.Contains(err.Error(), "address") {
			t.Errorf("endpoint %q: %v", bad, err)
		}
	}
}

func TestToken(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	var seen []string
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if auth := r.Header.Get("Authorization"); server == "HUB" && !slices.Contains(seen, auth) {
			seen = append(seen, auth)
		}
		return false
	}
	check := func(name string, opt Options, want string) {
		t.Helper()
		seen = nil
		opt.DownloadDir = t.TempDir()
		f.mustResolve(opt)
		if !slices.Equal(seen, []string{want}) {
			t.Errorf("%s: the Hub saw %q, want %q", name, seen, want)
		}
	}
	opt := f.options()
	check("none", opt, "")
	file := filepath.Join(os.Getenv("HF_HOME"), "token")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file,
		[]byte("hf_file\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	check("file", opt, "Bearer hf_file")
	t.Setenv("HF_TOKEN", " "+testToken)
	check("HF_TOKEN", opt, "Bearer "+testToken)
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
	check("disabled", opt, "")
	opt.Token = "hf_option"
	check("option", opt, "Bearer hf_option")
	if len(f.leaks) > 0 {
		t.Errorf("the token was sent to the content delivery network: %v", f.leaks)
	}
	if f.count("CDN") == 0 {
		t.Error("the content delivery network was not asked")
	}
	opt.Token = "hf_a\r\nX-Injected: 1"
	if _, err := f.resolve(opt); err == nil || strings.Contains(err.Error(), "hf_a") {
		t.Errorf("token with a line break: %v", err)
	}
}

// TestNoTokenAfterDetour redirects to the network and back: the token stays with the Hub on each
// hop that is its own.
func TestNoTokenAfterDetour(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server == "HUB" && strings.HasPrefix(r.URL.Path, "/api/") &&
			r.URL.Query().Get("back") == "" {
			http.Redirect(w, r, f.cdn.URL+"/detour"+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		if path, ok := strings.CutPrefix(r.URL.Path, "/detour"); ok {
			http.Redirect(w, r, f.hub.URL+path+"?back=1", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	opt := f.options()
	opt.Token = testToken
	f.mustResolve(opt)
	if len(f.leaks) > 0 {
		t.Errorf("the token was sent to the content delivery network: %v", f.leaks)
	}
}

func TestRenamedRepository(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if path := strings.Replace(r.URL.Path, "old/name", testRepo, 1); server == "HUB" &&
			path != r.URL.Path {
			http.Redirect(w, r, path, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	dir, err := Resolve(context.Background(), "old/name", f.options())
	if err != nil {
		t.Fatal(err)
	}
	checkFolder(t, dir, pick(repo, plainWanted...))
}

// TestFiles: what is no model is fetched by the names of its files, and found without the Hub.
func TestFiles(t *testing.T) {
	repo := map[string][]byte{"adapter_config.json": []byte("{}"),
		"adapter_model.safetensors": pattern(5000), "README.md": []byte("x")}
	f := newFakeHub(t, repo)
	opt := f.options()
	opt.Files = []string{"adapter_config.json", "adapter_model.safetensors"}
	dir := f.mustResolve(opt)
	checkFolder(t, dir, pick(repo, opt.Files...))
	opt.Offline = true
	if got := f.mustResolve(opt); got != dir {
		t.Errorf("offline: %s", got)
	}
	opt.Files, opt.Offline = append(opt.Files, "missing.json"), false
	if _, err := f.resolve(opt); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "has no missing.json") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestOffline(t *testing.T) {
	repo := shardedRepo()
	f := newFakeHub(t, repo)
	offline := f.options()
	offline.Offline = true
	if _, err := f.resolve(offline); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(),
		"models--org--model-1.0 has no such reference; offline mode is on") {
		t.Errorf("empty cache: %v", err)
	}
	dir := f.mustResolve(f.options())
	before := f.count("")
	if got := f.mustResolve(offline); got != dir {
		t.Errorf("offline: %s", got)
	}
	for _, name := range []string{"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		t.Setenv(name, "1")
		if got := f.mustResolve(f.options()); got != dir {
			t.Errorf("%s: %s", name, got)
		}
		t.Setenv(name, "")
	}
	offline.Revision = testCommit
	if got := f.mustResolve(offline); got != dir {
		t.Errorf("by commit: %s", got)
	}
	offline.Revision = "v2"
	if _, err := f.resolve(offline); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(),
		"revision v2") {
		t.Errorf("other revision: %v", err)
	}
	offline.Revision = ""
	// A link whose blob is gone does not count as a file.
	const shard = "model-00003-of-00007.safetensors"
	target, err := filepath.EvalSymlinks(filepath.Join(dir, shard))
	if err := errors.Join(err, os.Remove(target), os.Remove(filepath.Join(dir,
		"config.json"))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.resolve(offline); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(),
		"config.json, "+shard) {
		t.Errorf("incomplete: %v", err)
	}
	if f.count("") != before {
		t.Error("the Hub was asked in offline mode")
	}
	f.mustResolve(f.options())
	delete(repo, "unused.safetensors")
	checkFolder(t, dir, repo)
}

func TestUnreachable(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	dir := f.mustResolve(f.options())
	f.hub.Close()
	opt := f.options()
	var warned string
	opt.Warn = func(m string) { warned = m }
	opt.firstWait = time.Hour // with the model at hand there is no second attempt
	if got := f.mustResolve(opt); got != dir || !strings.Contains(warned, "cannot be reached") {
		t.Errorf("%s, warning %q", got, warned)
	}
	opt = f.options()
	opt.DownloadDir = t.TempDir()
	if _, err := f.resolve(opt); err == nil || errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("empty cache: %v", err)
	}
}

// TestNoNetwork holds that a Hub that refuses or never answers is given up within 5 s, and that the
// error says which Hub it is and what can be done without one.
func TestNoNetwork(t *testing.T) {
	// connections are taken by the kernel, and no more
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	for name, tt := range map[string]struct {
		hub  net.Listener
		want string
	}{"silent": {silent, "no answer within 4s"}, "refused": {refused, "connection refused"}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHub(t, nil)
			opt := f.options()
			opt.firstWait = 0 // as the program has it
			opt.Endpoint = "http://" + tt.hub.Addr().String()
			asked := ""
			opt.Ask = func(hub string) { asked = hub }
			started := time.Now()
			_, err := f.resolve(opt)
			if took := time.Since(started); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			if !errors.Is(err, ErrOffline) || asked != opt.Endpoint {
				t.Errorf("asked %q, error %v", asked, err)
			}
			for _, want := range []string{opt.Endpoint + " cannot be reached", tt.want,
				"give a folder", "HF_HUB_OFFLINE=1", "HF_ENDPOINT"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not have %q", err, want)
				}
			}
		})
	}
}

// TestSlowHub holds that a Hub that answers, if only to ask for patience, is not given up as one
// that cannot be reached.
func TestSlowHub(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	opt := f.options()
	opt.reach = time.Second
	opt.firstWait = 2 * opt.reach
	busy := true
	f.intercept = func(_ string, w http.ResponseWriter, r *http.Request) bool {
		was := busy
		busy = false
		if was {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return was
	}
	f.mustResolve(opt)
}

func TestRefused(t *testing.T) {
	tests := []struct {
		name, token, path, code string
		status                  int
		kind                    error
		want                    string
	}{
		{"gated, no token", "", "/resolve/", "GatedRepo", 401, ErrAccess,
			"gated: accept its terms on its page on http://127.0.0.1"},
		{"gated, with token", testToken, "/resolve/", "GatedRepo", 403, ErrAccess,
			"has not been granted access"},
		{"private, no token", "", "/api/", "RepoNotFound", 401, ErrNotFound, "or set HF_TOKEN"},
		{"bad token", testToken, "/api/", "", 401, ErrNotFound, "HF_TOKEN is not valid"},
		{"forbidden", testToken, "/api/", "", 403, ErrAccess,
			"lacks the permission to read this repository (the server's remark)"},
		{"no repository", testToken, "/api/", "RepoNotFound", 404, ErrNotFound,
			"no such repository: check the name"},
		{"no revision", "", "/api/", "RevisionNotFound", 404, ErrNotFound, "no such revision"},
		{"no file", "", "/resolve/", "EntryNotFound", 404, ErrNotFound, "no such file"},
		{"teapot", "", "/api/", "", 418, nil, "418 I'm a teapot (the server's remark)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeHub(t, plainRepo())
			asked := 0
			f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, tt.path) {
					return false
				}
				f.mu.Lock()
				asked++
				f.mu.Unlock()
				w.Header().Set(headerCode, tt.code)
				w.Header().Set(headerMessage, "the server's remark")
				w.WriteHeader(tt.status)
				return true
			}
			opt := f.options()
			opt.Token = tt.token
			_, err := f.resolve(opt)
			if err == nil || tt.kind != nil && !errors.Is(err, tt.kind) ||
				!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(),
				testRepo) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), testToken) {
				t.Errorf("error %v shows the token", err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if asked > 8 || tt.path == "/api/" && asked != 1 {
				t.Errorf("%d requests for what is refused for good", asked)
			}
		})
	}
}

func TestBadRepository(t *testing.T) {
	index := func(shard string) map[string][]byte {
		return map[string][]byte{"config.json": nil, weightIndex: []byte(`{"weight_map":{"a":"` +
			shard + `"}}`), "1.safetensors": nil}
	}
	tests := []struct {
		name  string
		files map[string][]byte
		want  string
	}{
		{"empty", nil, "no weights in safetensors format"},
		{"adapter", map[string][]byte{"adapter_config.json": nil, "adapter_model.safetensors": nil},
			"the repository is an adapter"},
		{"pickles", map[string][]byte{"config.json": nil, "pytorch_model.bin": nil},
			"(model.safetensors or model.safetensors.index.json), but pytorch_model.bin"},
		{"parent", map[string][]byte{"model.safetensors": nil,
			"../../.ssh/authorized_keys.json": nil},
			`"../../.ssh/authorized_keys.json", which is not a safe name`},
		{"hidden parent", map[string][]byte{"model.safetensors": nil, "a/../../b.json": nil},
			"not a safe name"},
		{"absolute", map[string][]byte{"model.safetensors": nil, "/etc/x.json": nil},
			"not a safe name"},
		{"backslash", map[string][]byte{"model.safetensors": nil, `..\x.json`: nil},
			"not a safe name"},
		{"no name", map[string][]byte{"model.safetensors": nil, "": nil}, "not a safe name"},
		{"long", map[string][]byte{"model.safetensors": nil, strings.Repeat("x", 256): nil},
			"not a safe name"},
		{"shard outside", index("../1.safetensors"), "not one of the repository's top folder"},
		{"shard of another kind", index("1.bin"), "not one of the repository's top folder"},
		{"shard not there", index("2.safetensors"),
			`names "2.safetensors", which the repository lacks`},
		{"broken index", map[string][]byte{weightIndex: []byte("x")},
			"model.safetensors.index.json: invalid character"},
		{"empty index", map[string][]byte{weightIndex: []byte("{}")}, "names no file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeHub(t, tt.files)
			if dir, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(),
				tt.want) {
				t.Errorf("%s, error %v, want %q", dir, err, tt.want)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	answer := func(path, body string, header ...string) func(string, http.ResponseWriter,
		*http.Request) bool {
		return func(server string, w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, path) {
				return false
			}
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.Write([]byte(body))
			return true
		}
	}
	tests := []struct {
		name      string
		intercept func(string, http.ResponseWriter, *http.Request) bool
		want      string
	}{
		{"not JSON", answer("/api/", "<html>"), "not the description of a model"},
		{"other JSON", answer("/api/", `{"sha":1}`), "not the description of a model"},
		{"no commit", answer("/api/", `{"siblings":[]}`), "where a commit is expected"},
		{"commit with a path", answer("/api/",
			`{"sha":"../../../../../../../../../../../../etc/"}`), "where a commit is expected"},
		{"no ETag", answer("/resolve/", "x"), `ETag "" does not identify a file`},
		{"ETag with a path", answer("/resolve/", "x", "ETag", `"../../../../x"`),
			"does not identify a file"},
		{"other commit", answer("/resolve/", "x", "ETag", `"0123456789"`, headerCommit, "beef"),
			`answers for commit "beef"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeHub(t, plainRepo())
			f.intercept = tt.intercept
			if dir, err := f.resolve(f.options()); err == nil || !strings.Contains(err.Error(),
				tt.want) {
				t.Errorf("%s, error %v, want %q", dir, err, tt.want)
			}
		})
	}
}

// TestConcurrent resolves the same model at once, as processes on one machine do: each blob is
// downloaded once.
func TestConcurrent(t *testing.T) {
	repo := plainRepo()
	f := newFakeHub(t, repo)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			dir, err := f.resolve(f.options())
			if err != nil {
				t.Error(err)
				return
			}
			checkFolder(t, dir, pick(repo, plainWanted...))
		})
	}
	wg.Wait()
	if n := f.count("CDN GET /model.safetensors"); n != 1 {
		t.Errorf("the weights were downloaded %d times", n)
	}
	if left := leftovers(t, os.Getenv("HF_HOME")); left != nil {
		t.Errorf("left over: %v", left)
	}
}

func TestCancel(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	ctx, cancel := context.WithCancel(context.Background())
	f.intercept = func(server string, w http.ResponseWriter, r *http.Request) bool {
		if server != "CDN" {
			return false
		}
		w.Header().Set("Content-Length", "3000000")
		w.Write(bytes.Repeat([]byte{0}, 1000))
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
		return true
	}
	start := time.Now()
	_, err := Resolve(ctx, testRepo, f.options())
	if !errors.Is(err, context.Canceled) || time.Since(start) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}
