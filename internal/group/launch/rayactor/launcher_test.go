package rayactor

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
)

func TestEnd(t *testing.T) {
	died := "The actor died unexpectedly before finishing this task.\n\tclass_name: " +
		"Worker\n\tactor_id: 17\n\tpid: 4\nThe actor is dead."
	// The beginning of what Ray 2.60.0 said; the rest are tables and advice.
	memory := "2 worker(s) were killed due to the node running low on memory.\n" +
		"Memory on the node (IP: 127.0.0.2) was 4.64GB used / 23.54GB limit (0.196995)\n" +
		strings.Repeat("17087\t3.18\tpython3 -\n", 100)
	code := 3
	for _, c := range []struct {
		name         string
		exit         ray.Exit
		line, detail string
	}{
		{"code", ray.Exit{Code: &code}, "exit status 3", ""},
		{"signal", ray.Exit{Signal: "SIGKILL"}, "signal: SIGKILL", ""},
		{"actor", ray.Exit{Class: "ActorDiedError", Reason: died},
			"ActorDiedError: The actor died unexpectedly before finishing this task. The actor " +
				"is dead.", ""},
		{"memory", ray.Exit{Class: "OutOfMemoryError", Reason: memory},
			"OutOfMemoryError: 2 worker(s) were killed due to the node running low on memory. " +
				"Memory on the node (IP: 127.0.0.2) was 4.64GB used / 23.54GB limit (0.196995) " +
				"17087", memory},
		{"one word", ray.Exit{Class: "X", Reason: strings.Repeat("ö", 300)}, "X:",
			strings.Repeat("ö", 300)},
	} {
		end, detail := end(c.exit)
		line := end.String()
		if !strings.HasPrefix(line, c.line) || c.detail == "" && line != c.line ||
			len(line) > maxCause+len(" …") || strings.ContainsAny(line, "\n") {
			t.Errorf("%s: line %q, want %q", c.name, line, c.line)
		}
		if detail != c.detail {
			t.Errorf("%s: detail %q", c.name, detail)
		}
	}
}
