package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestListAndRemove downloads a model, lists it beside what is no model or not whole, and removes
// it, with a server's files open and a download of it under way first.
func TestListAndRemove(t *testing.T) {
	files := plainRepo()
	f := newFakeHub(t, files)
	opt := f.options()
	if repos, err := List(opt); err != nil || repos != nil {
		t.Errorf("without a cache: %+v, %v", repos, err)
	}
	dir := f.mustResolve(opt)
	root := filepath.Join(os.Getenv("HF_HOME"), "hub")
	put := func(name string, size int) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("datasets--org--data/blobs/x", 9)
	put("models--..--escape/blobs/x", 9)
	put("models--org--begun/blobs/0123456789.incomplete", 1000)
	snapshot := "models--org--quants/snapshots/" + testCommit + "/"
	put(snapshot+"m-Q4_K_M.gguf", 10)
	put(snapshot+"big/m-Q8_0-00001-of-00002.gguf", 10)
	put(snapshot+"big/m-Q8_0-00002-of-00002.gguf", 10)
	put(snapshot+"big/m-F16-00001-of-00002.gguf", 10)
	repos, err := List(opt)
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, name := range plainWanted {
		bytes += int64(len(files[name]))
	}
	for i := range repos {
		if age := time.Since(repos[i].Changed); age < 0 || age > time.Hour {
			t.Errorf("%s was changed %v ago", repos[i].Name, age)
		}
		repos[i].Changed = time.Time{}
	}
	at := func(name string) string { return filepath.Join(root, name) }
	want := []Repo{
		{Name: "org/begun", Dir: at("models--org--begun"), Bytes: 1000,
			Missing: []string{"a snapshot"}},
		// The reference has the 40 letters of a commit.
		{Name: testRepo, Dir: at("models--org--model-1.0"), Bytes: bytes + 40},
		{Name: "org/quants", Dir: at("models--org--quants"), Bytes: 40,
			GGUF: []string{"big/m-Q8_0", "m-Q4_K_M"}},
	}
	if !reflect.DeepEqual(repos, want) {
		t.Errorf("repos %+v\nwant  %+v", repos, want)
	}

	for name, message := range map[string]string{
		"org/none":         "not in the cache",
		"org/quants:Q8_0":  "leave that out",
		"../../etc":        "not a Hub repository",
		root:               "not a Hub repository",
		"https://x.y/a/b/": "not one of the Hub's",
	} {
		if freed, err := Remove(t.Context(), name, opt); err == nil || freed != 0 ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("removed %q: %d bytes, %v; want %q", name, freed, err, message)
		}
	}
	c := repoCache{root: root, repo: testRepo}
	unlock, err := c.lock(t.Context(), "0123456789")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Remove(t.Context(), testRepo, opt); err == nil ||
		!strings.Contains(err.Error(), "another process downloads it") {
		t.Errorf("removed during a download: %v", err)
	}
	unlock()
	loaded, err := os.Open(filepath.Join(dir, singleWeights))
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	put(removed+"models--org--old-1/blobs/x", 9) // of a removal that was cut off
	freed, err := Remove(t.Context(), testRepo, opt)
	if err != nil || freed != bytes+40 {
		t.Errorf("%d bytes, want %d: %v", freed, bytes+40, err)
	}
	if _, err := loaded.Read(make([]byte, 8)); err != nil {
		t.Errorf("what was loaded is gone: %v", err)
	}
	if _, err := os.Stat(c.dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it is still there")
	}
	if left, err := filepath.Glob(at(removed + "*")); err != nil || left != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// By its folder in the cache, too; the others are left alone.
	if _, err := Remove(t.Context(), at("models--org--quants"), opt); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got := strings.Join(left, " "); got != ".locks datasets--org--data models--..--escape "+
		"models--org--begun" {
		t.Errorf("left is %s", got)
	}
	if f.mustResolve(opt) != dir {
		t.Error("it is not downloaded again")
	}
}

// TestListUnreadable lists a repository that cannot be read as one, beside those that can.
func TestListUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can read every folder")
	}
	root := t.TempDir()
	for _, name := range []string{"models--org--a", "models--org--b"} {
		if err := os.MkdirAll(filepath.Join(root, name, "blobs"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(root, "models--org--a", "blobs")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	repos, err := List(Options{DownloadDir: root})
	if err != nil || len(repos) != 2 || len(repos[0].Missing) != 1 ||
		!strings.Contains(repos[0].Missing[0], "permission denied") {
		t.Errorf("%+v, %v", repos, err)
	}
}
