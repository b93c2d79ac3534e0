package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestBadTemplates end the start, and say where they are wrong.
func TestBadTemplates(t *testing.T) {
	for source, want := range map[string]string{
		"é\nab\xff{{ x }}":            "line 2, column 3: not valid UTF-8",
		"\xff":                        "line 1, column 1: not valid UTF-8",
		"\n{{ messages[0].content }}": "",
		"first\n  é{{ messages | }}":  "line 2, column 19: ",
		"{% if true %}\n{% endfor %}": "line 2, column 11: ",
		"{{ 'open }}":                 "line 1, column 4: string is not closed",
		"one\ntwo {{ a ~ ? }}":        "line 2, column 12: unexpected char",
	} {
		path := filepath.Join(t.TempDir(), "template.jinja")
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config.Default()
		c.Cache.MemoryBytes, c.Model.ChatTemplate = 16<<20, path
		e, _, err := engine.Open(t.Context(), engine.Options{Config: c})
		if err == nil {
			_ = e.Stop(t.Context())
		}
		if (err == nil) != (want == "") || err != nil && !(strings.Contains(err.Error(), want) &&
			strings.Contains(err.Error(), "--chat-template "+path)) {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
}
