package figure

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"
)

// TestLogged: text has the digits that were asked for, JSON numbers.
func TestLogged(t *testing.T) {
	for _, c := range []struct {
		value      any
		text, json string
	}{
		{Seconds(7*time.Second, 1), "x=7.0", `"x":7.0`},
		{Seconds(1234567*time.Microsecond, 3), "x=1.235", `"x":1.235`},
		{Decimal{1e-9, 1}, "x=0.0", `"x":0.0`},
		{Decimal{math.NaN(), 1}, "x=NaN", `"x":null`},
		{Numbers{2, 13}, "x=2,13", `"x":[2,13]`},
		{Numbers(nil), `x=""`, `"x":[]`},
	} {
		var text, structured bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("m", "x", c.value)
		slog.New(slog.NewJSONHandler(&structured, nil)).Info("m", "x", c.value)
		if got := strings.TrimSpace(text.String()); !strings.HasSuffix(got, " "+c.text) {
			t.Errorf("%v is logged as %q", c.value, got)
		}
		if got := structured.String(); !strings.Contains(got, c.json+"}") {
			t.Errorf("%v is in JSON %s", c.value, got)
		}
	}
}
