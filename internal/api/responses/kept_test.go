package responses

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestReadStored: what is needed of a stored response is read, and neither decoded as a whole nor
// copied.
func TestReadStored(t *testing.T) {
	before := "resp_1"
	raw, err := json.Marshal(&Response{Background: true, Status: Incomplete,
		Output: []json.RawMessage{[]byte(`{"id":"msg_1"}`)}, PreviousResponseID: &before,
		Tools: []byte(`["` + strings.Repeat("tool ", 20_000) + `"]`)})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(storedResponse{Response: raw, Input: []byte(`["in"]`)})
	if err != nil {
		t.Fatal(err)
	}
	k := readStored(stored)
	if !k.background || k.status != Incomplete || k.previous != before ||
		string(k.items) != `[{"id":"msg_1"}]` || string(k.Input) != `["in"]` ||
		len(k.Response) != len(raw) {
		t.Errorf("read as %+v", k)
	}
	took := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			readStored(stored)
		}
	})
	if n := took.AllocedBytesPerOp(); n > int64(len(stored)/10) {
		t.Errorf("%d bytes allocated for a response of %d", n, len(stored))
	}
}
