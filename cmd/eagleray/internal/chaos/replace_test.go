package chaos

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// TestFolder has a copy of a model serve other weights, which a loader takes, and then its own
// again. Nothing is written where the model is.
func TestFolder(t *testing.T) {
	given := filepath.Join(t.TempDir(), "given")
	if err := extract(given); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(given, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ args, want []string }{
		"built-in": {[]string{"-tp", "2"}, []string{"COPY", "-tp", "2"}},
		"its name": {[]string{builtin.Name, "-tp", "2"}, []string{"COPY", "-tp", "2"}},
		"first":    {[]string{given, "-tp", "2"}, []string{"COPY", "-tp", "2"}},
		"last":     {[]string{"-tp", "2", given}, []string{"-tp", "2", "COPY"}},
		"flag":     {[]string{"--model", given, "-pp=2"}, []string{"--model", "COPY", "-pp=2"}},
		"equals":   {[]string{"-pp=2", "--model=" + given}, []string{"-pp=2", "--model=COPY"}},
	} {
		o := Options{Args: c.args, Faults: []string{"kill", "replace"}}
		if how := Missing("replace", o); how != "" {
			t.Errorf("%s: needs %s", name, how)
		}
		f, err := newFolder(&o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range o.Args {
			o.Args[i] = strings.Replace(o.Args[i], f.path, "COPY", 1)
		}
		if !slices.Equal(o.Args, c.want) {
			t.Errorf("%s: arguments %q", name, o.Args)
		}
		if _, err := os.Stat(filepath.Join(f.path, "config.json")); err != nil {
			t.Error(err)
		}
		for i, content := range []string{f.other, f.sound} {
			if err := f.put(content); err != nil {
				t.Fatal(err)
			}
			now, err := os.ReadFile(filepath.Join(f.path, "model.safetensors"))
			if same := bytes.Equal(now, own); err != nil || len(now) != len(own) ||
				same != (i == 1) {
				t.Errorf("%s: content %d of %d bytes, as before: %v, %v", name, i, len(now), same,
					err)
			}
			dir, err := checkpoint.Dir(f.path)
			if err != nil {
				t.Fatal(err)
			}
			c, err := checkpoint.Open(dir)
			if err != nil {
				t.Fatalf("%s: content %d: %v", name, i, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := f.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(f.temporary); err == nil {
			t.Errorf("%s: %s is still there", name, f.temporary)
		}
	}
	if now, err := os.ReadFile(filepath.Join(given, "model.safetensors")); err != nil ||
		!bytes.Equal(now, own) {
		t.Errorf("the model's own file is another one, %v", err)
	}
	for name, args := range map[string][]string{
		"a name":   {builtin.Name + "-other"},
		"no files": {t.TempDir()},
		"adopt":    {"-tp", "2", "--on-model-change", "adopt"},
		"dummy":    {given, "--load-format=dummy"},
		"Ray":      {"--distributed-executor-backend", "ray"},
	} {
		if Missing("replace", Options{Args: args}) == "" {
			t.Errorf("%s: nothing is missing", name)
		}
	}
}
