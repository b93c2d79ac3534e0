package chattemplate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

// fixtureNow is the clock of all cases: the date the reference rendered.
func fixtureNow() time.Time {
	return time.Date(2026, time.November, 20, 9, 5, 7, 120_000_000, time.UTC)
}

// renderCase is a line of a cases file: what Python's jinja2 made of a context.
type renderCase struct {
	Case     string          `json:"case"`
	Template string          `json:"template"` // only in files that hold their own templates
	Context  json.RawMessage `json:"context"`
	Rendered *string         `json:"rendered"`
	Error    string          `json:"error"`
}

func readCases(t testing.TB, path string) []renderCase {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var cases []renderCase
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var c renderCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		cases = append(cases, c)
	}
	if len(cases) == 0 {
		t.Fatalf("%s has no cases", path)
	}
	return cases
}

func context(t testing.TB, raw json.RawMessage) *Map {
	t.Helper()
	v, err := FromJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	vars, ok := v.AsMap()
	if !ok {
		t.Fatalf("context is not an object: %s", raw)
	}
	return vars
}

// render parses and renders, as a reference that compiles at render time would.
func render(source string, vars *Map) (string, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(vars, Options{Now: fixtureNow})
}

func checkCase(t *testing.T, source string, c renderCase) {
	t.Helper()
	got, err := render(source, context(t, c.Context))
	if c.Rendered == nil {
		if err == nil {
			t.Fatalf("rendered %q, want error %s", got, c.Error)
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("error %v is not an *Error", err)
		}
		if message, ok := strings.CutPrefix(c.Error, "TemplateError: "); ok && (!e.Raised ||
			e.Msg != message) {
			t.Fatalf("error %+v, want raised %q", e, message)
		}
		return
	}
	if err != nil {
		t.Fatalf("error %v, want %q", err, *c.Rendered)
	}
	if got != *c.Rendered {
		t.Fatalf("rendered\n%q, want\n%q", got, *c.Rendered)
	}
}

func TestFixtures(t *testing.T) { checkFolder(t, filepath.Join(fixtures.Dir(t), "templates")) }

// TestConversations renders our own chat templates; the expectations are jinja2 3.1.6's.
func TestConversations(t *testing.T) { checkFolder(t, "testdata") }

func checkFolder(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(file, ".jinja")
		for _, c := range readCases(t, name+".cases.jsonl") {
			t.Run(filepath.Base(name)+"/"+c.Case, func(t *testing.T) {
				checkCase(t, string(source),
					c)
			})
		}
	}
}
