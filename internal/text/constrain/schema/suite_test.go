package schema_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
)

// suiteGroup is a schema of the official suite with its tests.
type suiteGroup struct {
	Description string
	Schema      json.RawMessage
	Tests       []struct {
		Description string
		Data        json.RawMessage
		Valid       bool
	}
}

// suiteCount is what became of tests.
type suiteCount struct {
	all, passed, refused, narrowed, accepted int
	reasons                                  map[string]int
}

// file runs the tests of one file.
func (n *suiteCount) file(t *testing.T, draft, path string) {
	var groups []suiteGroup
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &groups)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, group := range groups {
		text := declared(string(group.Schema), draft)
		g, start, err := compile(text, schema.Options{AnyOrder: true})
		var e *cfg.Error
		none := errors.As(err, &e) && e.Code == cfg.SchemaUnsatisfiable
		for _, x := range group.Tests {
			n.all++
			if err != nil && !none {
				n.refused++
				n.reasons[e.Code+" "+e.Subject]++
				continue
			}
			got := !none && recognises(g, start, string(respaced(nil, x.Data)))
			if got == x.Valid {
				n.passed++
				continue
			}
			what := "narrowed"
			if got {
				what = "accepted"
				n.accepted++
			} else {
				n.narrowed++
			}
			t.Logf("%s: %s/%s: %s: %s: %s", what, draft, filepath.Base(path), group.Description,
				x.Description, x.Data)
		}
	}
}

// declared gives a schema of an older draft, which the suite leaves undeclared, its $schema.
func declared(text, draft string) string {
	if !strings.HasPrefix(text, "{") || strings.Contains(text, `"$schema"`) {
		return text
	}
	text = `{"$schema":"http://json-schema.org/` +
		strings.Replace(draft, "draft", "draft-0", 1) + `/schema#",` + text[1:]
	return strings.Replace(text, `,}`, `}`, 1)
}

// TestSuite runs JSON-Schema-Test-Suite: EAGLERAY_JSON_SCHEMA_SUITE names its folder tests. A
// schema is compiled, or refused by name. Compiled, no invalid instance is accepted; a valid one
// that is not accepted is narrowed, as docs/structured-outputs.md says. What draft 7 makes of
// contentMediaType and contentEncoding is left out there, as in later drafts.
func TestSuite(t *testing.T) {
	dir := os.Getenv("EAGLERAY_JSON_SCHEMA_SUITE")
	if dir == "" {
		t.Skip("EAGLERAY_JSON_SCHEMA_SUITE names no folder: the official suite is not run")
	}
	for _, draft := range []string{"draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"} {
		for _, kind := range []string{"*.json", "optional/*.json", "optional/format/*.json"} {
			files, err := filepath.Glob(filepath.Join(dir, draft, kind))
			if err != nil || len(files) == 0 {
				t.Fatalf("no files in %s/%s: %v", draft, kind, err)
			}
			n := suiteCount{reasons: map[string]int{}}
			for _, f := range files {
				if draft != "draft7" || filepath.Base(f) != "content.json" {
					n.file(t, draft, f)
				}
			}
			t.Logf("%s %s: %d tests, %d passed, %d refused, %d narrowed, %d accepted wrongly: %v",
				draft, kind, n.all, n.passed, n.refused, n.narrowed, n.accepted, n.reasons)
			if n.accepted > 0 {
				t.Errorf("%s %s: invalid instances are accepted", draft, kind)
			}
		}
	}
}
