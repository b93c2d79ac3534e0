package hub

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestBucket(t *testing.T) {
	repo := plainRepo()
	repo["1_Pooling/config.json"] = []byte("{}")
	f := newFakeStore(t, repo)
	f.put("models/llama/", nil) // as consoles make folders
	f.put("models/llama-2/config.json", []byte("another"))
	var last Progress
	opt := f.options()
	opt.Progress = func(p Progress) { last = p }
	dir, err := Resolve(t.Context(), "s3://models/llama/", opt)
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(os.Getenv("HF_HOME"), "hub", "s3--models--llama")
	if filepath.Dir(dir) != filepath.Join(cache, "snapshots") {
		t.Errorf("folder %s is not in %s", dir, cache)
	}
	checkFolder(t, dir, pick(repo, plainWanted...))
	if last.File != "model.safetensors" || last.AllDone != last.AllTotal || last.AllTotal == 0 {
		t.Errorf("last progress %+v", last)
	}
	if left := leftovers(t, os.Getenv("HF_HOME")); left != nil {
		t.Errorf("left over: %v", left)
	}
	// The second time it is listed, in pages, and nothing else.
	before, lists := f.count(""), f.count("GET /models/")-f.count("GET /models/llama")
	if again := f.mustResolve("s3://models/llama"); again != dir || f.count("") != before+lists {
		t.Errorf("second time: %s, %d requests; want %d", again, f.count("")-before, lists)
	}
	// What does not belong to the model does not make it another one; what does, does.
	f.put("models/llama/logs.txt", []byte("x"))
	if again := f.mustResolve("s3://models/llama"); again != dir {
		t.Errorf("with a log it is %s, want %s", again, dir)
	}
	repo["chat_template.jinja"] = []byte("{{ y }}")
	f.put("models/llama/chat_template.jinja", repo["chat_template.jinja"])
	changed := f.mustResolve("s3://models/llama")
	if changed == dir || f.count("GET /models/llama/model.safetensors") != 1 {
		t.Errorf("with another template it is %s, and weights came %d times", changed,
			f.count("GET /models/llama/model.safetensors"))
	}
	checkFolder(t, changed, pick(repo, plainWanted...))

	// A node of the group wants what the first one found.
	opt.Revision = filepath.Base(changed)
	again, err := Resolve(t.Context(), "s3://models/llama", opt)
	if err != nil || again != changed {
		t.Errorf("by its commit it is %s, %v", again, err)
	}
	opt.Revision = testCommit
	if again, err := Resolve(t.Context(), "s3://models/llama", opt); err == nil ||
		!strings.Contains(err.Error(), "start anew") {
		t.Errorf("by a commit that is gone it is %s, %v", again, err)
	}

	repos, err := List(opt)
	if err != nil || len(repos) != 1 || repos[0].Name != "s3://models/llama" ||
		repos[0].Missing != nil {
		t.Errorf("listed as %+v, %v", repos, err)
	}
	if names := Cached(opt); len(names) != 1 || names[0] != "s3://models/llama" {
		t.Errorf("cached as %q", names)
	}
	if freed, err := Remove(t.Context(), "s3://models/llama/", opt); err != nil || freed < 3e6 {
		t.Errorf("removed %d bytes, %v", freed, err)
	}
}

// TestBucketOffline takes what the cache has where the store does not answer.
func TestBucketOffline(t *testing.T) {
	f := newFakeStore(t, plainRepo())
	f.server.Config.SetKeepAlivesEnabled(false)
	dir := f.mustResolve("s3://models/llama")
	f.server.Close()
	if again := f.mustResolve("s3://models/llama"); again != dir {
		t.Errorf("without the store it is %s", again)
	}
	_, err := Resolve(t.Context(), "s3://models/other", f.options())
	if !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), f.server.URL) {
		t.Errorf("another model: %v", err)
	}
}

func TestBucketGGUF(t *testing.T) {
	files := map[string][]byte{"m-Q4_K_M.gguf": pattern(10), "m-Q8_0.gguf": pattern(20),
		"big-00001-of-00002.gguf": pattern(30), "big-00002-of-00002.gguf": pattern(40)}
	f := newFakeStore(t, files)
	for model, want := range map[string][]string{
		"s3://models/llama/m-Q8_0.gguf": {"m-Q8_0.gguf"},
		"s3://models/llama:q8_0":        {"m-Q8_0.gguf"},
		"s3://models/llama":             {"m-Q4_K_M.gguf"},
		"s3://models/llama/big-00001-of-00002.gguf": {"big-00001-of-00002.gguf",
			"big-00002-of-00002.gguf"},
	} {
		path := f.mustResolve(model)
		checkFile := filepath.Base(path)
		if checkFile != want[0] {
			t.Errorf("%s is %s, want %s", model, checkFile, want[0])
		}
		for _, name := range want {
			if raw, err := os.ReadFile(filepath.Join(filepath.Dir(path), name)); err != nil ||
				string(raw) != string(files[name]) {
				t.Errorf("%s: %s has %d bytes, %v", model, name, len(raw), err)
			}
		}
	}
}

// TestBucketKeys signs what stores and net/url escape differently.
func TestBucketKeys(t *testing.T) {
	f := newFakeStore(t, nil)
	repo := plainRepo()
	const prefix = "team a/Ünï+cö=de(1)&~'x*!"
	for name, data := range repo {
		f.put("b.with.dots/"+prefix+"/"+name, data)
	}
	f.region = "eu-central-1" // found out by the first answer
	t.Setenv("AWS_SESSION_TOKEN", "session")
	checkFolder(t, f.mustResolve("s3://b.with.dots/"+prefix), pick(repo, plainWanted...))
	if names := Cached(Options{}); len(names) != 1 || names[0] != "s3://b.with.dots/"+prefix {
		t.Errorf("cached as %q", names)
	}
}

func TestBucketResumes(t *testing.T) {
	repo := plainRepo()
	f := newFakeStore(t, repo)
	var cuts atomic.Int32
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/model.safetensors") &&
			cuts.Add(1) == 1 {
			cutAt(w, repo["model.safetensors"], 1_000_000)
		}
		return false
	}
	checkFolder(t, f.mustResolve("s3://models/llama"), pick(repo, plainWanted...))
	if f.count("GET /models/llama/model.safetensors bytes=") != 1 {
		t.Errorf("requests %q", f.requests)
	}
}

// TestBucketChecks compares contents with the checksums that stores announce.
func TestBucketChecks(t *testing.T) {
	tests := map[string]func(h http.Header){
		"crc32c": func(h http.Header) { h.Set("X-Amz-Checksum-Crc32c", "AAAAAA==") },
		"sha256": func(h http.Header) {
			h.Set("X-Amz-Checksum-Sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
		},
		"crc64": func(h http.Header) {
			h.Del("X-Amz-Checksum-Crc32c")
			h.Set("X-Amz-Checksum-Crc64nvme", "AAAAAAAAAAA=")
		},
		"google": func(h http.Header) {
			h.Del("X-Amz-Checksum-Crc32c")
			h.Add("X-Goog-Hash", "crc32c=AAAAAA==,md5=AAAA")
		},
	}
	for name, adjust := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFakeStore(t, plainRepo())
			f.adjust = func(h http.Header, _ string) { adjust(h) }
			_, err := Resolve(t.Context(), "s3://models/llama", f.options())
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("a wrong checksum: %v", err)
			}
		})
	}
	// The known value of the polynomial, "123456789" in the catalogue of CRC RevEng.
	for _, c := range checksums {
		if c.header == "X-Amz-Checksum-Crc64nvme" {
			h := c.sum()
			h.Write([]byte("123456789"))
			if got := fmt.Sprintf("%x", h.Sum(nil)); got != "ae8b14860a799888" {
				t.Errorf("CRC-64/NVME is %s", got)
			}
		}
	}
	sum, want := checksum(http.Header{"X-Amz-Checksum-Crc32": {"AAAAAA==-2"}},
		"900150983cd24fb0d6963f7d28e17f72")
	h := sum()
	h.Write([]byte("abc"))
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != want {
		t.Errorf("an ETag of MD5 is checked as %s, want %s", got, want)
	}
	for _, kind := range []string{"aws:kms", "aws:kms:dsse"} {
		if sum, _ := checksum(http.Header{"X-Amz-Server-Side-Encryption": {kind}},
			"900150983cd24fb0d6963f7d28e17f72"); sum != nil {
			t.Errorf("the ETag of an object with %s is checked", kind)
		}
	}
}

func TestBucketErrors(t *testing.T) {
	refuseAll := func(status int, code string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			refuse(w, status, code)
			return true
		}
	}
	// An object that is listed and cannot be had.
	object := func(status int, code string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/tokenizer.json") {
				refuse(w, status, code)
				return true
			}
			return false
		}
	}
	for name, tt := range map[string]struct {
		model, want string
		kind        error
		env         map[string]string
		intercept   func(w http.ResponseWriter, r *http.Request) bool
	}{
		"bucket": {model: "s3://none/llama", want: "has no bucket none", kind: ErrNotFound},
		"nothing": {model: "s3://models/lama", want: `nothing under "lama/" in the bucket models`,
			kind: ErrNotFound},
		"above": {model: "s3://models/", want: "no config.json there, but s3://models/llama/config",
			kind: ErrNotFound},
		"no config": {model: "s3://models/other", want: "there is no config.json there",
			kind: ErrNotFound},
		"nobody": {model: "s3://models/llama", want: "there are none: set AWS_ACCESS_KEY_ID",
			kind: ErrAccess, env: map[string]string{"AWS_ACCESS_KEY_ID": ""}},
		"anonymous": {model: "s3://anonymous@models/llama", want: "leave out anonymous@",
			kind: ErrAccess},
		"key": {model: "s3://models/llama", want: "does not know the key of AWS_ACCESS_KEY_ID",
			kind: ErrAccess, env: map[string]string{"AWS_ACCESS_KEY_ID": "AKIDOTHER"}},
		"secret": {model: "s3://models/llama", want: "the secret key of AWS_ACCESS_KEY_ID",
			kind: ErrAccess, env: map[string]string{"AWS_SECRET_ACCESS_KEY": "x"}},
		"profile": {model: "s3://models/llama", want: "the profile gone:", kind: ErrAccess,
			env: map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "gone"}},
		"pod": {model: "s3://models/llama", want: "AWS_WEB_IDENTITY_TOKEN_FILE:", kind: ErrAccess,
			env: map[string]string{"AWS_ACCESS_KEY_ID": "",
				"AWS_WEB_IDENTITY_TOKEN_FILE": "/no/such/token"}},
		"forbidden": {model: "s3://models/llama",
			want: "AWS_ACCESS_KEY_ID may not list there (AccessDenied: it said)", kind: ErrAccess,
			intercept: refuseAll(403, "AccessDenied")},
		"session": {model: "s3://models/llama", want: "the session of AWS_ACCESS_KEY_ID has ended",
			kind: ErrAccess, intercept: refuseAll(400, "ExpiredToken")},
		"clock": {model: "s3://models/llama", want: "this machine's clock", kind: ErrAccess,
			intercept: refuseAll(403, "RequestTimeTooSkewed")},
		"object": {model: "s3://models/llama",
			want: "file tokenizer.json: AWS_ACCESS_KEY_ID may not read tokenizer.json",
			kind: ErrAccess, intercept: object(403, "AccessDenied")},
		"archive": {model: "s3://models/llama", want: "tokenizer.json: it is archived",
			kind: ErrAccess, intercept: object(403, "InvalidObjectState")},
		"changed": {model: "s3://models/llama", want: "since the bucket was listed",
			intercept: object(412, "PreconditionFailed")},
		"web page": {model: "s3://models/llama", want: "does not answer as S3 does",
			intercept: func(w http.ResponseWriter, r *http.Request) bool {
				fmt.Fprint(w, "<html>")
				return true
			}},
		"endpoint": {model: "s3://models/llama", want: `AWS_ENDPOINT_URL_S3: "ftp://x"`,
			env: map[string]string{"AWS_ENDPOINT_URL_S3": "ftp://x"}},
	} {
		t.Run(name, func(t *testing.T) {
			repo := plainRepo()
			delete(repo, "model.gguf")
			f := newFakeStore(t, repo)
			f.put("models/other/model.safetensors", []byte("x"))
			f.intercept = tt.intercept
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			dir, err := Resolve(t.Context(), tt.model, f.options())
			if err == nil || !strings.Contains(err.Error(), tt.want) ||
				tt.kind != nil && !errors.Is(err, tt.kind) {
				t.Errorf("%q, %v; want %q", dir, err, tt.want)
			}
			if f.count("") > 30 {
				t.Errorf("%d requests", f.count(""))
			}
		})
	}
}

func TestBucketAddresses(t *testing.T) {
	f := newFakeStore(t, nil)
	for model, want := range map[string]string{
		"s3://":                            "not the name of a bucket",
		"s3://A_":                          "not the name of a bucket",
		"s3://" + strings.Repeat("b", 223): "not the name of a bucket",
		"s3://b/x":                         "not the name of a bucket",
		"gs://key:secret@bucket/x":         "an address has no credentials",
		"s3://bucket/a/../b":               "no folder's name",
		"s3://bucket/a//b":                 "no folder's name",
		"s3://bucket/a:":                   "not the name of a quantisation",
		"s3://bucket/" + strings.Repeat("a", 200): "the path has more than",
		"abfss://c@a.dfs.core/x":                  "abfss:// is not read: s3:// and gs:// are",
		"azure://c/x":                             "azure:// is not read",
	} {
		if dir, err := Resolve(t.Context(), model, f.options()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q, %v; want %q", model, dir, err, want)
		}
	}
	opt := f.options()
	opt.Revision = "v1"
	if _, err := Resolve(t.Context(), "s3://models/x", opt); err == nil ||
		!strings.Contains(err.Error(), "a bucket has no revisions") {
		t.Errorf("a revision: %v", err)
	}
	if f.count("") != 0 {
		t.Errorf("the store was asked: %q", f.requests)
	}
	for path, want := range map[string]string{"/c/models--a--b/snapshots/" + testCommit: testCommit,
		"/c/s3--b--a/snapshots/" + testCommit + "/x/m.gguf": testCommit, "/models/llama": ""} {
		if got := Commit(path); got != want {
			t.Errorf("the commit of %s is %q, want %q", path, got, want)
		}
	}
	for _, repo := range []string{"s3://bucket", "gs://my-bucket/a/b", "s3://b.b/a--b/-c-/%2F/d e",
		"org/name"} {
		folder := folderOf(repo)
		if got, ok := repoOf(folder); !ok || got != repo || strings.Contains(folder, "/") {
			t.Errorf("%s is in the folder %s, which is %s, %v", repo, folder, got, ok)
		}
	}
	for _, folder := range []string{".locks", "datasets--a--b", "s3", "s3--", "s3--b--..",
		"s3--b--%2", "s3--bucket--x:y"} {
		if repo, ok := repoOf(folder); ok {
			t.Errorf("the folder %s is of %s", folder, repo)
		}
	}
}

// TestBucketCredentials finds those of profiles, and of Google's accounts.
func TestBucketCredentials(t *testing.T) {
	f := newFakeStore(t, plainRepo())
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	profile := fmt.Sprintf("[team]\naws_access_key_id = %s\naws_secret_access_key = %s\n", storeKey,
		storeSecret)
	path := os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
	if err := os.WriteFile(path, []byte(profile), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_PROFILE", "team")
	dir := f.mustResolve("s3://models/llama")

	t.Setenv("AWS_PROFILE", "")
	f.open = true
	f.mustResolve("s3://models/llama") // without credentials, where none are needed
	f.mustResolve("s3://anonymous@models/llama")
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(f.server.URL, "http://"))
	if google := f.mustResolve("gs://models/llama"); filepath.Base(google) != filepath.Base(dir) {
		t.Errorf("the same files are %s and %s", google, dir)
	}

	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"abc","token_type":"Bearer","expires_in":3600}`)
	}))
	defer tokens.Close()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]string{"type": "service_account",
		"client_email": "a@b.c", "token_uri": tokens.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key)}))})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "account.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	signer, err := googleSigner(t.Context(), bucket{scheme: "gs", name: "b"}, false)
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	if err := signer.sign(req, ""); err != nil || req.Header.Get("Authorization") != "Bearer abc" {
		t.Errorf("signed with %v, %v", maps.Collect(maps.All(req.Header)), err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file+".gone")
	if _, err := googleSigner(t.Context(), bucket{scheme: "gs", name: "b"}, false); err == nil ||
		!strings.Contains(err.Error(), "account.json.gone") {
		t.Errorf("without the file: %v", err)
	}
}
