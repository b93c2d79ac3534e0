package process

import "strings"

// tailLines is how many of a child's last lines are kept to explain its death.
const tailLines = 20

// tail keeps the last lines written to it. It is used by the goroutine that reads the child's
// output.
type tail struct{ kept []string }

func (t *tail) add(line string) {
	if len(t.kept) == tailLines {
		copy(t.kept, t.kept[1:])
		t.kept = t.kept[:tailLines-1]
	}
	t.kept = append(t.kept, trimNewline(line))
}

func (t *tail) lines() []string { return t.kept }

func trimNewline(s string) string { return strings.TrimRight(s, "\r\n") }
