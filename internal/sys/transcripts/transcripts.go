// Package transcripts replays readable tests of state machines from files, as cockroachdb's
// datadriven does. A file is a sequence of
//
//	# comments
//	commands, one per line
//	----
//	what they print
//
// with a blank line after. `go test -rewrite` writes the files as the code has them now.
package transcripts

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false,
	"write the transcripts under testdata as the code has them now")

// Run replays each of testdata/*.txt in a test of its own. start makes what runs a file's commands:
// a function from a command's name and arguments to what it prints.
func Run(t *testing.T, start func(t *testing.T) func(name string, args []string) string) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(text), start(t))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("the transcript differs from line %d on; now:\n%s",
					differ(got, string(text)), got)
			}
		})
	}
}

// differ is the first line, from 1, in which two texts differ.
func differ(a, b string) int {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return i + 1
		}
	}
	return min(len(x), len(y)) + 1
}

// replay returns text with the output of its commands as it is now.
func replay(t *testing.T, text string, command func(name string, args []string) string) string {
	var out strings.Builder
	inOutput := false
	var printed string
	for line := range strings.Lines(text) {
		switch {
		case line == "----\n":
			out.WriteString(line + printed)
			inOutput, printed = true, ""
		case inOutput:
			if line == "\n" {
				out.WriteString(line)
				inOutput = false
			}
		default:
			out.WriteString(line)
			if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(line, "#") {
				printed += command(f[0], f[1:])
			}
		}
	}
	if printed != "" {
		t.Fatal("the last commands have no ---- line")
	}
	return out.String()
}
