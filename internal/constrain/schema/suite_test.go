package schema_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/constrain/cfg"
	"github.com/eagleray/eagleray/internal/constrain/schema"
)

// TestSuite runs JSON-Schema-Test-Suite: EAGLERAY_JSON_SCHEMA_SUITE names its folder tests. A
// schema is compiled or refused by name. Compiled, no invalid instance may be accepted; a valid
// one that is not is one of the narrowings that docs/structured-outputs.md lists.
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
			var n struct{ all, passed, refused, narrowed, wrong int }
			reasons := map[string]int{}
			for _, f := range files {
				var groups []struct {
					Description string
					Schema      json.RawMessage
					Tests       []struct {
						Description string
						Data        json.RawMessage
						Valid       bool
					}
				}
				raw, err := os.ReadFile(f)
				if err == nil {
					err = json.Unmarshal(raw, &groups)
				}
				if err != nil {
					t.Fatal(f, err)
				}
				for _, group := range groups {
					text := string(group.Schema)
					if strings.HasPrefix(text, "{") && !strings.Contains(text, `"$schema"`) {
						uri := "http://json-schema.org/" + strings.Replace(draft, "draft", "draft-0", 1) + "/schema#"
						text = `{"$schema":"` + uri + `",` + text[1:]
						text = strings.Replace(text, `,}`, `}`, 1)
					}
					g, start, err := compile(text, schema.Options{AnyOrder: true})
					var e *cfg.Error
					none := errors.As(err, &e) && e.Code == cfg.SchemaUnsatisfiable
					for _, x := range group.Tests {
						n.all++
						if err != nil && !none {
							n.refused++
							reasons[e.Code+" "+e.Subject]++
							continue
						}
						got := !none && recognises(g, start, string(respaced(nil, x.Data)))
						switch {
						case got == x.Valid:
							n.passed++
						case x.Valid:
							n.narrowed++
							t.Logf("narrowed: %s/%s: %s: %s: %s", draft, filepath.Base(f), group.Description, x.Description, x.Data)
						default:
							n.wrong++
							t.Logf("WRONG: %s/%s: %s: %s: %s %s", draft, filepath.Base(f), group.Description, x.Description, text, x.Data)
						}
					}
				}
			}
			t.Logf("TABLE %s %s: %d tests, %d passed, %d refused, %d narrowed, %d wrong", draft, kind, n.all, n.passed, n.refused, n.narrowed, n.wrong)
			for k, v := range reasons {
				t.Logf("   %s: %d of %s", draft, v, k)
			}
		}
	}
}
