package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestManual writes the manual and holds it to the commands and their flags.
func TestManual(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if code, _, stderr := execute(t, "", "man", dir); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var started bool
	pages := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		pages++
		text, err := os.ReadFile(filepath.Join(dir, pageName(c)+".1"))
		if err != nil {
			t.Fatal(err)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			entry := `\fB\-\-` + roff(f.Name) + `\fR`
			if bytes.Contains(text, []byte(entry)) == f.Hidden {
				t.Errorf("%s: --%s: hidden %v", pageName(c), f.Name, f.Hidden)
			}
		})
		for _, sub := range visible(c) {
			walk(sub)
		}
	}
	walk(rootFor(&started, nil))
	written, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(written) != pages || pages < 10 {
		t.Errorf("%d pages for %d commands (%v)", len(written), pages, err)
	}

	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("no groff here, which reads the pages")
	}
	warned, err := exec.Command(groff, append([]string{"-man", "-Tutf8", "-ww", "-z"},
		written...)...).
		CombinedOutput()
	if err != nil || len(warned) > 0 {
		t.Errorf("groff: %v: %s", err, warned)
	}
	shown, err := exec.Command(groff, "-man", "-Tascii", "-P-cbou",
		filepath.Join(dir, "eagleray-serve.1")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SYNOPSIS\n       eagleray serve [MODEL] [flags]\n",
		"\n         eagleray serve ./Qwen3-0.6B -tp 2 --max-model-len 4096 ",
		"\n       --block-size int\n", "(default 16)"} {
		if !strings.Contains(string(shown), want) {
			t.Errorf("the page of serve lacks %q:\n%s", want, shown)
		}
	}
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		`.TH a\b`: `\&.TH a\eb`, "'so x": `\(aqso x`, "--a": `\-\-a`,
	} {
		if got := roff(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
