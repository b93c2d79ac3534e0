package chattemplate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/fixtures"
)

func benchmarkCase(b *testing.B, dir, template, name string) {
	source, err := os.ReadFile(filepath.Join(dir, template+".jinja"))
	if err != nil {
		b.Fatal(err)
	}
	tmpl, err := Parse(string(source))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range readCases(b, filepath.Join(dir, template+".cases.jsonl")) {
		if c.Case != name {
			continue
		}
		vars := context(b, c.Context)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tmpl.Render(vars, Options{}); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.Fatalf("no case %s", name)
}

// BenchmarkQwen3Multi renders five turns with Qwen3's template.
func BenchmarkQwen3Multi(b *testing.B) {
	benchmarkCase(b, filepath.Join(fixtures.Dir(b), "templates"), "qwen3", "multi")
}

// BenchmarkThinkingCalls renders tools, tool calls and their results with our own template.
func BenchmarkThinkingCalls(b *testing.B) { benchmarkCase(b, "testdata", "thinking", "call") }

func BenchmarkParse(b *testing.B) {
	source, err := os.ReadFile(filepath.Join("testdata", "thinking.jinja"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(string(source)); err != nil {
			b.Fatal(err)
		}
	}
}
