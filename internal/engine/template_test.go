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

// TestToolTemplates are found where libraries have written them, and templates in files stand for
// all of tokenizer_config.json's.
func TestToolTemplates(t *testing.T) {
	const file, tools = "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
	list := `{"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"},
		{"name":"rag","template":"{% broken"}]}`
	for _, c := range []struct {
		files       map[string]string
		usual, tool string
	}{
		{map[string]string{"tokenizer_config.json": list}, "D", "T"},
		{map[string]string{"tokenizer_config.json": `{"chat_template":"D"}`}, "D", ""},
		{map[string]string{"tokenizer_config.json": list, file: "F"}, "F", ""},
		{map[string]string{"tokenizer_config.json": "{}", file: "F", tools: "U"}, "F", "U"},
		{map[string]string{"tokenizer_config.json": list, file: "F", tools: "U"}, "F", "U"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("../../testdata/models/go-std-tiny")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(dir, filepath.Dir(tools)), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		conf := config.Default()
		conf.Cache.MemoryBytes, conf.Model.Path = 16<<20, dir
		e, _, err := engine.Open(t.Context(), engine.Options{Config: conf})
		if err != nil {
			t.Fatal(err)
		}
		usual, tool := e.Info().Template.Source(), ""
		if of := e.Info().ToolTemplate; of != nil {
			tool = of.Source()
		}
		if usual != c.usual || tool != c.tool {
			t.Errorf("%v: %q, with tools %q", c.files, usual, tool)
		}
		_ = e.Stop(t.Context())
	}
}
