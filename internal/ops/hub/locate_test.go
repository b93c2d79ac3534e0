package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLocateAddresses(t *testing.T) {
	t.Setenv("HF_ENDPOINT", "http://mirror.example:81")
	for model, want := range map[string]Location{
		"https://huggingface.co/org/name":                {Model: "org/name"},
		"https://huggingface.co/org/name/":               {Model: "org/name"},
		"https://huggingface.co/org/name?library=vllm#x": {Model: "org/name"},
		"https://www.huggingface.co/org/name/tree/main":  {Model: "org/name", Revision: "main"},
		"https://huggingface.co/org/name/tree/refs%2Fpr%2F1": {Model: "org/name",
			Revision: "refs/pr/1"},
		"http://mirror.example:81/org/name": {Model: "org/name"},
		"hf.co/org/name:Q4_K_M":             {Model: "org/name:Q4_K_M"},
		"huggingface.co/org/name":           {Model: "org/name"},
		"hf://org/name":                     {Model: "org/name"},
		"org/name":                          {Model: "org/name"},
		"./hf.co/org/name":                  {Model: "./hf.co/org/name"},
		"":                                  {},
	} {
		if got, err := Locate(model, ""); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", model, got, err, want)
		}
	}
	for model, want := range map[string]string{
		"https://huggingface.co/org":                          "not that of a model",
		"https://huggingface.co/datasets/org/name":            "not that of a model",
		"https://huggingface.co/org/name/blob/main/m-q8.gguf": "org/name:Q4_K_M",
		"https://huggingface.co/org/name/discussions/3":       "a page of the repository org/name",
		"https://huggingface.co/org/name/tree/%zz":            "invalid URL escape",
		"https://example.org/org/name":                        "not one of the Hub's",
		"http://":                                             "not one of the Hub's",
	} {
		if got, err := Locate(model, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %+v, %v; want %q", model, got, err, want)
		}
	}
}

// TestLocateCacheFolder follows a repository's folder of the cache to a snapshot, also where the
// Hub's own folder is called like one of its addresses.
func TestLocateCacheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models--org--my-model")
	const other = "ffffffffffffffffffffffffffffffffffffffff"
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(revision, want string) {
		t.Helper()
		if l, err := Locate(dir, revision); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("revision %q is %+v, %v; want %q", revision, l, err, want)
		}
	}
	found := func(revision, commit string) {
		t.Helper()
		want := Location{Model: filepath.Join(dir, "snapshots", commit), Repo: "org/my-model"}
		if l, err := Locate(dir+"/", revision); err != nil || l != want {
			t.Errorf("revision %q is %+v, %v; want %+v", revision, l, err, want)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "snapshots"), 0o755); err != nil {
		t.Fatal(err)
	}
	refused("", "eagleray pull org/my-model")
	put("snapshots/"+testCommit+"/config.json", "{}")
	found("", testCommit) // the only one
	put("snapshots/"+other+"/config.json", "{}")
	refused("", "several snapshots")
	found(other, other)
	put("refs/main", testCommit)
	found("", testCommit)
	put("refs/v2", other)
	found("v2", other)
	refused("v3", "refs/v3")
	refused("../v3", "not the name of a branch")
	put("refs/main", "nonsense")
	refused("", "does not hold a commit")

	// The folder is what Resolve gives, without a Hub.
	put("refs/main", testCommit)
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	got, err := Resolve(t.Context(), dir, Options{})
	if want := filepath.Join(dir, "snapshots", testCommit); err != nil || got != want {
		t.Errorf("Resolve gives %q, %v; want %q", got, err, want)
	}
}
