package schema_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
)

// TestManyInOneGrammar: a schema costs as much in a grammar that has those of hundreds of tools as
// in one that has few.
func TestManyInOneGrammar(t *testing.T) {
	g := cfg.New(regex.NewBuilder(1<<20), cfg.Greedy, 500_000)
	tools := 0
	allocs := func() float64 {
		return testing.AllocsPerRun(20, func() {
			tools++
			text := `{"type":"object","properties":{"a` + strconv.Itoa(tools) +
				`":{"type":"string"}}}`
			if _, err := schema.Compile(text, g, schema.Options{}, schema.Limits{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	few := allocs()
	for tools < 400 {
		allocs()
	}
	if many := allocs(); many > 1.5*few {
		t.Errorf("a schema takes %v allocations behind %d others, and %v behind few", many, tools,
			few)
	}
}

// BenchmarkCompile compiles a schema of the size that tools have, and one of which most is text.
func BenchmarkCompile(b *testing.B) {
	tool := `{"type":"object","properties":{"city":{"type":"string","description":"a \"place\""},` +
		`"unit":{"enum":["celsius","fahrenheit"]},"days":{"type":"array","items":{"type":` +
		`"integer","minimum":1,"maximum":14}}},"required":["city"]}`
	var list []string
	for i := range 10_000 {
		list = append(list, `"value number `+strconv.Itoa(i)+`"`)
	}
	for name, text := range map[string]string{"tool": tool,
		"long": `{"enum":[` + strings.Join(list, ",") + `]}`} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, _, err := compile(text, schema.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
