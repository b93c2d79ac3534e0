package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

func TestRoundTrip(t *testing.T) {
	for _, m := range []frame.Request{
		{Beat: true},
		{ID: 1, Op: "nodes"},
		{ID: 1 << 60, Op: "group_get", Args: json.RawMessage(`{"id":"ü\u0000"}`), Timeout: 0.25},
		{Cancel: 7},
	} {
		data, err := frame.Append(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := frame.Read(iotest.OneByteReader(bytes.NewReader(data)))
		if err != nil {
			t.Fatalf("read %+v: %v", m, err)
		}
		var back frame.Request
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if got, want := mustJSON(t, back), mustJSON(t, m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReadErrors(t *testing.T) {
	head := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	for name, test := range map[string]struct {
		data string
		want error
	}{
		"nothing":            {"", io.EOF},
		"half a head":        {"\x00\x00", io.ErrUnexpectedEOF},
		"head alone":         {head(2), io.ErrUnexpectedEOF},
		"half a body":        {head(10) + "{}", io.ErrUnexpectedEOF},
		"empty":              {head(0), frame.ErrLength},
		"one byte too many":  {head(frame.MaxLength + 1), frame.ErrLength},
		"as long as can be":  {head(1<<32 - 1), frame.ErrLength},
		"an ASCII intrusion": {"GET / HTTP/1.1\r\n\r\n", frame.ErrLength},
	} {
		if _, err := frame.Read(strings.NewReader(test.data)); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}

func TestReadTakesTheLongest(t *testing.T) {
	body := `"` + strings.Repeat("x", frame.MaxLength-2) + `"`
	raw, err := frame.Read(strings.NewReader(string(binary.BigEndian.AppendUint32(nil,
		frame.MaxLength)) + body))
	if err != nil || len(raw) != frame.MaxLength {
		t.Fatalf("got %d bytes, %v", len(raw), err)
	}
	if _, err := frame.Append(nil, strings.Repeat("x", frame.MaxLength)); !errors.Is(err,
		frame.ErrLength) {
		t.Errorf("append of more than the longest: %v", err)
	}
}

// A length that promises much must not cost memory before the bytes come.
func TestReadDoesNotTrustTheLength(t *testing.T) {
	data := binary.BigEndian.AppendUint32(nil, frame.MaxLength)
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := frame.Read(bytes.NewReader(data)); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 64<<10 {
		t.Errorf("a lonely head of %d bytes cost %d bytes of memory", frame.MaxLength, allocated)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x11{\"id\":1,\"op\":\"x\"}\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			before := r.Len()
			raw, err := frame.Read(r)
			if err != nil {
				if errors.Is(err, io.EOF) && before != 0 {
					t.Fatalf("a clean end with %d bytes left", before)
				}
				return
			}
			if len(raw) == 0 || before-r.Len() != 4+len(raw) {
				t.Fatalf("a frame of %d bytes took %d", len(raw), before-r.Len())
			}
			// Whatever decodes must encode again.
			var m frame.Reply
			if json.Unmarshal(raw, &m) != nil {
				continue
			}
			if _, err := frame.Append(nil, m); err != nil {
				t.Fatalf("decoded but not encoded: %v", err)
			}
		}
	})
}
