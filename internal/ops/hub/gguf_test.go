package hub

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGGUF takes the files of one quantisation of a repository, by the tag behind its name, and
// nothing else; again from the cache.
func TestGGUF(t *testing.T) {
	repo := map[string][]byte{"config.json": []byte(`{}`), "README.md": []byte("#"),
		"m-Q4_K_M.gguf": pattern(70_000), "m-Q4_K_S.gguf": pattern(60_000),
		"m-q8_0.gguf": pattern(80_000), "mmproj-m-F16.gguf": pattern(9),
		"BF16/m-BF16-00001-of-00002.gguf": pattern(50_000),
		"BF16/m-BF16-00002-of-00002.gguf": pattern(40_000)}
	f := newFakeHub(t, repo)
	for tag, files := range map[string][]string{"": {"m-Q4_K_M.gguf"}, ":Q4_K_M": {"m-Q4_K_M.gguf"},
		":Q8_0": {"m-q8_0.gguf"}, ":bf16": {"BF16/m-BF16-00001-of-00002.gguf",
			"BF16/m-BF16-00002-of-00002.gguf"}} {
		for _, offline := range []bool{false, true} {
			opt := f.options()
			opt.Offline = offline
			path, err := Resolve(context.Background(), testRepo+tag, opt)
			if err != nil {
				t.Fatalf("%q, offline %v: %v", tag, offline, err)
			}
			dir, ok := strings.CutSuffix(path, "/"+files[0])
			if !ok {
				t.Errorf("%q, offline %v: %s", tag, offline, path)
			}
			for _, name := range files {
				got, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil || len(got) != len(repo[name]) {
					t.Errorf("%q: %d bytes of %s, %v", tag, len(got), name, err)
				}
			}
		}
	}
	for _, name := range []string{"m-Q4_K_S.gguf", "config.json", "mmproj-m-F16.gguf"} {
		if n := f.count("HUB HEAD /" + testRepo + "/resolve/" + testCommit + "/" + name); n > 0 {
			t.Errorf("%s was asked for", name)
		}
	}
	for tag, want := range map[string]string{
		":Q6_K": "no model in GGUF for Q6_K (there are BF16/m-BF16, m-Q4_K_M.gguf, m-Q4_K_S.gguf",
		":Q4_K": "no model in GGUF for Q4_K (", ":m": "several models in GGUF for m: ",
		":": `"" is not the name of a quantisation`, ":a b": "is not the name of a quantisation",
	} {
		if path, err := Resolve(context.Background(), testRepo+tag, f.options()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want %q", tag, path, err, want)
		}
	}
	opt := f.options()
	opt.Offline = true
	if path, err := Resolve(context.Background(), testRepo+":Q4_K_S", opt); err == nil ||
		!strings.Contains(err.Error(), "files of GGUF for Q4_K_S") {
		t.Errorf("offline: %q, %v", path, err)
	}
}

// TestGGUFBesideSafetensors takes the latter unless a tag asks for the former.
func TestGGUFBesideSafetensors(t *testing.T) {
	f := newFakeHub(t, plainRepo())
	if dir := f.mustResolve(f.options()); isGGUF(dir) {
		t.Errorf("%s is taken", dir)
	}
	if _, err := selectGGUF([]string{"a-Q5_0.gguf", "a-Q6_K.gguf"}, ""); err == nil ||
		!strings.Contains(err.Error(), "say which, as in org/name:Q8_0") {
		t.Error(err)
	}
	files, err := selectGGUF([]string{"a.gguf", "config.json"}, "")
	if err != nil || len(files) != 1 || files[0] != "a.gguf" {
		t.Errorf("%q, %v", files, err)
	}
	file := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := Resolve(context.Background(), file, f.options()); path != file || err != nil {
		t.Errorf("a file is %q, %v", path, err)
	}
}
