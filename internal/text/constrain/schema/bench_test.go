package schema_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/schema"
)

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
