package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// encoded is encoding/json without HTML escaping.
func encoded(t testing.TB, v any) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "plain", `"\`, "\x00\x01\x1f\x7f", "\b\f\n\r\t", "é日本😀", "\xff\xfe", "a\xc3", "\u2028\u2029", "<&>", "\xed\xa0\x80", "x\ufffdy"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := encoded(t, s)
		if got := string(AppendString(nil, s)); got != want {
			t.Errorf("string %q: %s, encoding/json has %s", s, got, want)
		}
		if got := string(AppendString([]byte("x"), []byte(s))); got != "x"+want {
			t.Errorf("bytes %q: %s, encoding/json has %s", s, got, want)
		}
	})
}

func TestAppendLogprob(t *testing.T) {
	for v, want := range map[float32]string{
		0: "0", -0.5: "-0.5", -1e-7: "-0.0000001", -9999: "-9999", -20000: "-9999",
		float32(math.Inf(-1)): "-9999", float32(math.Inf(1)): "-9999", -1.25e-3: "-0.00125",
	} {
		if got := string(AppendLogprob(nil, v)); got != want {
			t.Errorf("appendLogprob(%v) = %s, want %s", v, got, want)
		}
	}
	if got := string(AppendLogprob(nil, float32(math.NaN()))); got != "-9999" {
		t.Errorf("NaN gave %s", got)
	}
}

func TestAppendInts(t *testing.T) {
	if got := string(AppendInts(nil, []int32{1, -2, 30})); got != "[1,-2,30]" {
		t.Error(got)
	}
	if got := string(AppendInts(nil, []byte(nil))); got != "[]" {
		t.Error(got)
	}
}

func TestErrorShape(t *testing.T) {
	e := BadRequest("n", "a \"quoted\" %s", "<thing>")
	want := encoded(t, ErrorBody{ErrorDetail{e.Message, "BadRequestError", &e.Param, 400}})
	if got := string(e.Append(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := string((&Error{Status: 500, Message: "x"}).Append(nil)); got != `{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}` {
		t.Error(got)
	}
}
