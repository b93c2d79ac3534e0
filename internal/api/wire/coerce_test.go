package wire

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

// TestCoercions converts as pydantic did, which testdata/lax.py asked. "refused" is a value
// that it does not take, "beyond" one that it takes and that has no finite value of 64 bits.
func TestCoercions(t *testing.T) {
	raw, err := os.ReadFile("testdata/lax.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][4]any
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 80 {
		t.Fatalf("only %d rows", len(rows))
	}
	outcome := func(v any, f fault) any {
		switch f {
		case notOfType:
			return "refused"
		case outOfRange:
			return "beyond"
		}
		return v
	}
	for _, row := range rows {
		text := []byte(row[0].(string))
		n, bad := coerceInt(text)
		if row[1] == "refused" && bad == outOfRange { // pydantic has no word for a float too large
			bad = notOfType
		}
		if got := outcome(float64(n), bad); got != row[1] {
			t.Errorf("%s as an integer is %v, pydantic says %v", text, got, row[1])
		}
		f, bad := coerceFloat(text)
		want := row[2]
		if v, ok := want.(float64); ok && math.Abs(v) > math.MaxFloat32 {
			want = "beyond" // sampling computes in float32
		}
		if got := outcome(f, bad); got != want {
			t.Errorf("%s as a number is %v, pydantic says %v", text, got, want)
		}
		bad = none
		b, ok := CoerceBool(text)
		if !ok {
			bad = notOfType
		}
		if got := outcome(b, bad); got != row[3] {
			t.Errorf("%s as a boolean is %v, pydantic says %v", text, got, row[3])
		}
	}
}
