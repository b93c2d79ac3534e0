package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// file builds a safetensors file of a header as given and n bytes of data that count up.
func file(header string, n int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	out = append(out, header...)
	for i := range n {
		out = append(out, byte(i))
	}
	return out
}

func TestParseFile(t *testing.T) {
	header := `{"__metadata__":{"format":"pt","a\u0062":"\"x\""},
		"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},
		"a":{"shape":[2],"data_offsets":[0,4],"dtype":"BF16"},
		"empty":{"dtype":"F16","shape":[0,5],"data_offsets":[12,12]},
		"scalar":{"dtype":"I64","shape":[],"data_offsets":[12,20]},
		"half":{"dtype":"F4","shape":[4],"data_offsets":[20,22]},
		"\u00e9\n":{"dtype":"U8","shape":[1],"data_offsets":[22,23]}}   ` + "\n"
	tensors, err := ParseFile(file(header, 23))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"a": "BF16 [2] [0 1 2 3]", "b": "F32 [2 1] [4 5 6 7 8 9 10 11]", "empty": "F16 [0 5] []",
		"scalar": "I64 [] [12 13 14 15 16 17 18 19]", "half": "F4 [4] [20 21]",
		"é\n": "U8 [1] [22]",
	}
	if len(tensors) != len(want) {
		t.Errorf("%d tensors, want %d", len(tensors), len(want))
	}
	for name, w := range want {
		got := tensors[name]
		if s := fmt.Sprintf("%v %v %v", got.DType, got.Shape, got.Data); s != w ||
			got.Name != name {
			t.Errorf("tensor %q (%q): %s, want %s", name, got.Name, s, w)
		}
	}
	if n := tensors["b"].Elements(); n != 2 {
		t.Errorf("b has %d elements", n)
	}
}

func TestParseFileOnlyMetadata(t *testing.T) {
	tensors, err := ParseFile(file(`{"__metadata__":{}}`, 0))
	if err != nil || len(tensors) != 0 {
		t.Errorf("%v, %v", tensors, err)
	}
}

func TestParseFileMalformed(t *testing.T) {
	one := func(info string) []byte { return file(`{"w":{`+info+`}}`, 8) }
	length := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty file", nil, "file of 0 bytes is shorter"},
		{"seven bytes", make([]byte, 7), "file of 7 bytes is shorter"},
		{"length 2^63", append(length(1<<63), "{}"...),
			"header length 9223372036854775808 is above"},
		{"length 2^64-1", append(length(1<<64-1), "{}"...), "above the limit"},
		{"length above limit", append(length(maxHeader+1), "{}"...), "above the limit"},
		{"header longer than file", append(length(10), "{}"...), "after 10 of at least 18 bytes"},
		{"no header", length(0), "does not begin with '{'"},
		{"leading space", file(` {}`, 0), "does not begin with '{'"},
		{"list", file(`[]`, 0), "does not begin with '{'"},
		{"cut header", file(`{"w":`, 0), `tensor "w": unexpected end at byte 5`},
		{"bytes after header", file(`{} x`, 0), "data after the JSON object at byte 3"},
		{"zero byte after header", file("{}\x00", 0), "data after the JSON object at byte 2"},
		{"trailing comma", one(`"dtype":"F32",`), "expected a key in quotes after a comma"},
		{"missing comma", one(`"dtype":"F32" "shape":[2]`), "expected , or } in an object"},
		{"not utf-8", file("{\"\xff\":1}", 0), "invalid UTF-8 in the string at byte 1"},
		{"control character", file("{\"a\nb\":1}", 0), "control character"},
		{"bad escape", file(`{"\x":1}`, 0), `unknown escape \x at byte 2`},
		{"endless string", file(`{"a\`, 0), "unexpected end in a string"},
		{"tensor is not an object", file(`{"w":[]}`, 0), `tensor "w": expected '{', got '[' at byte 5`},
		{"duplicate name", file(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `tensor "w" occurs twice`},
		{"duplicate name by escape", file(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0077":{}}`, 0), `tensor "w" occurs twice`},
		{"duplicate metadata", file(`{"__metadata__":{},"__metadata__":{}}`, 0), `"__metadata__" occurs twice`},
		{"metadata number", file(`{"__metadata__":{"a":1}}`, 0), `__metadata__: key "a"`},
		{"metadata nested", file(`{"__metadata__":{"a":{"b":"c"}}}`, 0), `__metadata__: key "a"`},
		{"metadata twice the key", file(`{"__metadata__":{"a":"","a":""}}`, 0), `key "a" occurs twice`},
		{"unknown key", one(`"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":{}`), `tensor "w": unknown key "extra"`},
		{"duplicate key", one(`"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]`), `key "dtype" occurs twice`},
		{"no dtype", one(`"shape":[2],"data_offsets":[0,8]`), "all required"},
		{"no shape", one(`"dtype":"F32","data_offsets":[0,8]`), "all required"},
		{"no offsets", one(`"dtype":"F32","shape":[2]`), "all required"},
		{"unknown dtype", one(`"dtype":"Q4","shape":[2],"data_offsets":[0,8]`), `tensor "w": dtype: unknown type "Q4"`},
		{"invalid dtype", one(`"dtype":"invalid","shape":[2],"data_offsets":[0,8]`), `unknown type "invalid"`},
		{"lower-case dtype", one(`"dtype":"f32","shape":[2],"data_offsets":[0,8]`), `unknown type "f32"`},
		{"dtype number", one(`"dtype":1,"shape":[2],"data_offsets":[0,8]`), `tensor "w": dtype`},
		{"wrong dtype for size", one(`"dtype":"BF16","shape":[2],"data_offsets":[0,8]`), `tensor "w": 8 bytes for [2] of BF16, which needs 4`},
		{"negative dimension", one(`"dtype":"F32","shape":[-2],"data_offsets":[0,8]`), `tensor "w": shape: -2 is not a whole number`},
		{"fractional dimension", one(`"dtype":"F32","shape":[2.0],"data_offsets":[0,8]`), "2.0 is not a whole number"},
		{"exponent", one(`"dtype":"F32","shape":[2e0],"data_offsets":[0,8]`), "2e0 is not a whole number"},
		{"leading zero", one(`"dtype":"F32","shape":[02],"data_offsets":[0,8]`), "expected , or ] in an array at byte 30"},
		{"dimension 2^63", one(`"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]`), "9223372036854775808 is not a whole number from 0 to 9223372036854775807"},
		{"dimension 10^30", one(`"dtype":"F32","shape":[1000000000000000000000000000000],"data_offsets":[0,8]`), "1000000000000000000000000000000 is not a whole number from 0 to 9223372036854775807"},
		{"product overflows", one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]`), `tensor "w": the size of [4294967296 4294967296] of F32 overflows`},
		{"bytes overflow", one(`"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8]`), "overflows"},
		{"overflow hidden by zero", one(`"dtype":"F32","shape":[4294967296,4294967296,4294967296,0],"data_offsets":[0,8]`), "overflows"},
		{"too many dimensions", one(`"dtype":"F32","shape":[` + strings.Repeat("1,", maxRank) + `2],"data_offsets":[0,8]`), "more than 32 dimensions"},
		{"nested shape", one(`"dtype":"F32","shape":[[2]],"data_offsets":[0,8]`), `tensor "w": shape`},
		{"half a byte", file(`{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "does not end on a byte"},
		{"one offset", one(`"dtype":"F32","shape":[2],"data_offsets":[0]`), "1 offsets instead of two"},
		{"three offsets", one(`"dtype":"F32","shape":[2],"data_offsets":[0,8,8]`), "more than two offsets"},
		{"negative offset", one(`"dtype":"F32","shape":[2],"data_offsets":[-8,0]`), "data_offsets: -8 is not a whole number"},
		{"offsets swapped", one(`"dtype":"F32","shape":[2],"data_offsets":[8,0]`), "ends at byte 0, before it begins at 8"},
		{"offset past the end", one(`"dtype":"F32","shape":[4],"data_offsets":[0,16]`), "after 71 of at least 79 bytes"},
		{"truncated data", file(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 7), "after 69 of at least 70 bytes: it was cut off, download"},
		{"size is not shape times type", one(`"dtype":"F32","shape":[1],"data_offsets":[0,8]`), "8 bytes for [1] of F32, which needs 4"},
		{"bytes at the end", one(`"dtype":"F32","shape":[1],"data_offsets":[0,4]`), "the last 4 of 8 bytes"},
		{"hole", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), `tensor "b": bytes 2 to 3 before it`},
		{"hole at the start", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `tensor "a": bytes 0 to 1 before it`},
		{"overlap", file(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}}`, 5), `tensor "b": byte 2 is already`},
		{"same bytes twice", file(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}`, 3), `tensor "b": byte 0 is already`},
		{"long name is cut", file(`{"`+strings.Repeat("n", 1000)+`":1}`, 0), "(1000 bytes)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tensors, err := ParseFile(tt.data)
			if err == nil {
				t.Fatalf("parsed as %v", tensors)
			}
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tt.want) ||
				len(err.Error()) > 500 {
				t.Errorf("error %q, want ErrMalformed with %q", err, tt.want)
			}
		})
	}
}

func TestDType(t *testing.T) {
	for d, want := range map[DType]string{
		BF16: "BF16 2 true", F16: "F16 2 true", F32: "F32 4 true", I64: "I64 8 false",
		F8E4M3: "F8_E4M3 1 false", F4: "F4 0 false", Invalid: "invalid 0 false",
		200: "DType(200) 0 false",
	} {
		if got := fmt.Sprintf("%v %d %t", d, d.Size(), d.Weight()); got != want {
			t.Errorf("%d: %s, want %s", uint8(d), got, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"format":"pt"},"\u00e9":{"dtype":"F4","shape":[0,2],"data_offsets":[0,0]}}  `, 0))
	f.Add(file(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}}`, 1))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := ParseFile(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		// What was accepted covers the data exactly once.
		covered := make([]int, len(data))
		for name, tensor := range tensors {
			if name != tensor.Name || !within(data, tensor.Data) {
				t.Fatalf("tensor %q (%q) is not a view of the file", name, tensor.Name)
			}
			if bits := tensor.Elements() * tensor.DType.bits(); bits != 8*len(tensor.Data) {
				t.Fatalf("tensor %q: %v of %v has %d bytes", name, tensor.Shape, tensor.DType,
					len(tensor.Data))
			}
			if len(tensor.Data) == 0 {
				continue
			}
			begin, end := span(data, tensor.Data)
			for i := begin; i < end; i++ {
				covered[i]++
			}
		}
		start := lengthSize + int(binary.LittleEndian.Uint64(data))
		for i, n := range covered {
			if want := btoi(i >= start); n != want {
				t.Fatalf("byte %d is in %d tensors, want %d", i, n, want)
			}
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
