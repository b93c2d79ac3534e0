package chattemplate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

const fuzzContext = `{"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hé <x>"},
{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"function":{"name":"f","arguments":{"q":1.5}}}]}],
"s":"Hello, Wörld","n":42,"f":2.5,"l":[3,1,2],"d":{"b":1,"a":{"x":[1,null,true]}},"big":123456789012345678901234567890,
"tools":null,"add_generation_prompt":true,"bos_token":"<s>"}`

func addTemplates(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.jinja"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	// A sample: fuzzing starts with all seeds, and many differ little.
	for i, c := range readCases(f, filepath.Join("testdata", "language.jsonl"))[1:] {
		if i%8 == 0 || c.Template[:2] != "{{" {
			f.Add(c.Template)
		}
	}
}

// FuzzParse checks that any text either parses or gives an *Error with a line.
func FuzzParse(f *testing.F) {
	addTemplates(f)
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err == nil {
			if format := tmpl.ContentFormat(); format != FormatString && format != FormatOpenAI {
				t.Fatalf("format %q", format)
			}
			return
		}
		var e *Error
		if !errors.As(err, &e) || e.Msg == "" {
			t.Fatalf("error %#v", err)
		}
	})
}

// FuzzRender checks that any template renders to bounded UTF-8 or fails with an *Error, within its
// bounds.
func FuzzRender(f *testing.F) {
	addTemplates(f)
	vars, err := FromJSON([]byte(fuzzContext))
	if err != nil {
		f.Fatal(err)
	}
	m, _ := vars.AsMap()
	before, err := vars.JSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		opt := Options{Now: fixtureNow, MaxOutput: 1 << 16, MaxSteps: 1 << 16, MaxMemory: 1 << 20}
		out, err := tmpl.Render(m, opt)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if len(out) > opt.MaxOutput || !utf8.ValidString(out) {
			t.Fatalf("%d bytes, valid %v", len(out), utf8.ValidString(out))
		}
		if again, err := tmpl.Render(m, opt); err != nil || again != out {
			t.Fatalf("second rendering %q, %v; first %q", again, err, out)
		}
		if after, _ := vars.JSON(); after != before {
			t.Fatalf("the template changed its context to %s", after)
		}
	})
}
