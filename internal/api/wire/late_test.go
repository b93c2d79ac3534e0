package wire

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestLate: parts stand where they were added, and encoding/json does not have them.
func TestLate(t *testing.T) {
	var l Late
	v := struct {
		Text        string
		One, No, By json.RawMessage
	}{Text: `"\u0000"`, One: l.Add([]byte(`{"a": 1}`)), By: l.Add([]byte(`[ 2 ]`))}
	b, err := json.Marshal(v)
	if err != nil || bytes.Contains(b, []byte("a")) {
		t.Fatalf("%s, %v", b, err)
	}
	const want = `{"Text":"\"\\u0000\"","One":{"a": 1},"No":null,"By":[ 2 ]}`
	if got := bytes.Join(l.Pieces(b), nil); string(got) != want {
		t.Errorf("%s\ninstead of %s", got, want)
	}
	if got := bytes.Join(new(Late).Pieces([]byte(want)), nil); string(got) != want {
		t.Errorf("%s\ninstead of %s", got, want)
	}
}
