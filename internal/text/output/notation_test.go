package output

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// randomValue is any value of JSON's, as encoding/json has it.
func randomValue(dice *rand.Rand, depth int) any {
	kinds := 7
	if depth > 3 {
		kinds = 5
	}
	switch dice.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return dice.IntN(2) == 0
	case 2:
		return float64(dice.IntN(2000)-1000) / 4
	case 3, 4:
		return randomText(dice)
	case 5:
		list := []any{}
		for range dice.IntN(4) {
			list = append(list, randomValue(dice, depth+1))
		}
		return list
	}
	m := map[string]any{}
	for range dice.IntN(4) {
		m[randomText(dice)] = randomValue(dice, depth+1)
	}
	return m
}

func randomText(dice *rand.Rand) string {
	pieces := []string{"a", "b1", "_", " ", "\n", `"`, `'`, `\`, "{", "}", "[", "]", ",", ":", "é", "日",
		"<|tool_call>", "12", "true", "\x01", "</x>"}
	var b strings.Builder
	for range dice.IntN(5) {
		b.WriteString(pieces[dice.IntN(len(pieces))])
	}
	return b.String()
}

// written is a value in a notation: with quotes of its own, or Python's.
func written(v any, n *typed.Notation) string {
	text := func(s string) string {
		if n.Quote != "" {
			return n.Quote + s + n.Quote
		}
		return strconv.Quote(s)
	}
	switch v := v.(type) {
	case nil:
		return n.Null
	case bool:
		return map[bool]string{true: n.True, false: n.False}[v]
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		return text(v)
	case []any:
		var list []string
		for _, x := range v {
			list = append(list, written(x, n))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	var list []string
	for key, x := range v.(map[string]any) {
		list = append(list, text(key)+": "+written(x, n))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// TestNotations: whatever arguments are written in a notation, they are read as JSON of the same
// value, in pieces as whole.
func TestNotations(t *testing.T) {
	dice := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		v := map[string]any{"a": randomValue(dice, 0), "b": randomValue(dice, 0)}
		for _, tt := range []struct{ parser, text string }{
			{"gemma4", "<|tool_call>call:f" + written(v, typed.Gemma4) + "<tool_call|>"},
			{"functiongemma", "<start_function_call>call:f" + written(v, typed.FunctionGemma) +
				"<end_function_call>"},
			{"olmo3", "<function_calls>\nf(a=" + written(v["a"], typed.Python) + ", b=" +
				written(v["b"], typed.Python) + ")\n</function_calls>"},
		} {
			o := Options{Tools: FormatNamed(tt.parser), ID: func() string { return "made" }}
			whole := fold(t, o, tt.text)
			var got any
			if len(whole.calls) != 1 || whole.content != "" ||
				json.Unmarshal([]byte(whole.calls[0][1]), &got) != nil ||
				!reflect.DeepEqual(got, any(v)) {
				t.Fatalf("%s: %q is %s", tt.parser, tt.text, whole)
			}
			if in := fold(t, o, randomPieces(dice, tt.text)...); in.String() != whole.String() {
				t.Fatalf("%s: %q in pieces is %s", tt.parser, tt.text, in)
			}
		}
	}
}
