package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// models are the fixtures; all have weights of type BF16.
var models = []string{"go-std-tiny", "llama-tiny", "opt-tiny", "qwen2-tiny", "qwen3-tiny",
	"qwen3moe-tiny"}

func modelDir(name string) string {
	return filepath.Join("..", "..", "..", "..", "testdata", "models", name)
}

func openDir(t *testing.T, path string) *Checkpoint {
	t.Helper()
	f, err := Dir(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOpenModels(t *testing.T) {
	for _, name := range models {
		t.Run(name, func(t *testing.T) {
			c := openDir(t, modelDir(name))
			var sum int64
			names := c.Names()
			if !slices.IsSorted(names) || len(names) < 20 {
				t.Errorf("names are not sorted or too few: %d", len(names))
			}
			for _, n := range names {
				tensor, err := c.Tensor(n)
				if err != nil {
					t.Fatal(err)
				}
				if tensor.Name != n || tensor.DType != BF16 ||
					len(tensor.Data) != 2*tensor.Elements() || tensor.Elements() == 0 {
					t.Errorf("%s: %q %v %v with %d bytes", n, tensor.Name, tensor.DType,
						tensor.Shape, len(tensor.Data))
				}
				sum += int64(len(tensor.Data))
			}
			if sum != c.Bytes() {
				t.Errorf("Bytes is %d, the tensors have %d", c.Bytes(), sum)
			}
			for _, n := range names {
				if strings.HasPrefix(n, "logits_") {
					t.Errorf("%s is from full_logits.st, which is not weights", n)
				}
			}
		})
	}
}

// TestViews reads the same bytes through the mapping as from the file, also after they were
// released.
func TestViews(t *testing.T) {
	c := openDir(t, modelDir("llama-tiny"))
	raw, err := os.ReadFile(filepath.Join(modelDir("llama-tiny"), "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := ParseFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, n := range c.Names() {
			tensor, err := c.Tensor(n)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(tensor.Data, want[n].Data) || !slices.Equal(tensor.Shape,
				want[n].Shape) {
				t.Errorf("%s differs from the file", n)
			}
			part := tensor
			part.Data = part.Data[len(part.Data)/2:]
			c.Release(part)
			c.Release(tensor)
		}
	}
}

// TestRelease measures that released pages leave the process.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	const size = 32 << 20
	header := fmt.Sprintf(
		`{"pad":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"F32","shape":[%d],"data_offsets":[3,%d]}}`, size/4, size+3)
	data := append(file(header, 3), make([]byte, size)...)
	if err := os.WriteFile(filepath.Join(dir, weightsFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	c := openDir(t, dir)
	tensor, err := c.Tensor("w")
	if err != nil {
		t.Fatal(err)
	}
	before := residentFile(t)
	if touch(tensor.Data) != 0 {
		t.Error("the file holds other bytes")
	}
	loaded := residentFile(t)
	c.Release(tensor)
	released := residentFile(t)
	if loaded-before < size/2 || loaded-released < size/2 {
		t.Errorf("resident file pages: %d before, %d read, %d released; the tensor has %d", before,
			loaded, released, size)
	}
	if touch(tensor.Data) != 0 {
		t.Error("released bytes changed")
	}
}

// TestReadSparsely looks up how the system was told that a file will be read: what it reads then
// depends on the disk.
func TestReadSparsely(t *testing.T) {
	c := openDir(t, modelDir("llama-tiny"))
	if strings.Contains(mappingFlags(t), " rr ") {
		t.Error("a checkpoint is read sparsely from the start")
	}
	c.ReadSparsely()
	if flags := mappingFlags(t); !strings.Contains(flags, " rr ") {
		t.Errorf("flags of the mapping are %q, without rr", flags)
	}
	tensor, err := c.Tensor("model.embed_tokens.weight")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{nil, tensor.Data[:1], tensor.Data[4095:4097], tensor.Data} {
		Prefetch(part)
	}
}

// mappingFlags are those of the mapped weights in /proc/self/smaps.
func mappingFlags(t *testing.T) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	_, of, found := strings.Cut(string(maps), weightsFile)
	_, flags, flagged := strings.Cut(of, "VmFlags:")
	if !found || !flagged {
		t.Skip("no flags of the mapping in /proc/self/smaps")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	return flags
}

func touch(data []byte) (sum byte) {
	for i := 0; i < len(data); i += 4096 {
		sum += data[i]
	}
	return sum
}

// residentFile is how many bytes of mapped files are in this process's memory.
func residentFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status on this system")
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Skip("no RssFile in /proc/self/status")
	return 0
}

func TestReleaseForeign(t *testing.T) {
	c := openDir(t, modelDir("llama-tiny"))
	heap := make([]byte, 1<<16)
	for i := range heap {
		heap[i] = 1
	}
	c.Release(Tensor{Name: "model.norm.weight", Data: heap})
	c.Release(Tensor{Name: "unknown", Data: heap})
	if slices.Contains(heap, 0) {
		t.Error("releasing a tensor of another owner dropped its memory")
	}
}

const bytesA, bytesB = `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`,
	`{"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}`

func TestOpenSharded(t *testing.T) {
	f := Embedded("test", map[string][]byte{
		indexFile: []byte(
			`{"metadata":{"total_size":3,"x":[1,{"y":null}],"z":-1.5e3},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`),
		"1.safetensors":   file(bytesA, 1),
		"2.safetensors":   file(bytesB, 2),
		"3.safetensors":   []byte("not named by the index"),
		"full_logits.st":  []byte("not weights"),
		"tokenizer.model": nil,
	})
	c, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Names(); !slices.Equal(got, []string{"a", "b"}) || c.Bytes() != 3 {
		t.Errorf("names %v, %d bytes", got, c.Bytes())
	}
	b, err := c.Tensor("b")
	if err != nil || !slices.Equal(b.Data, []byte{0, 1}) {
		t.Errorf("b: %v, %v", b, err)
	}
	c.Release(b)
	if !c.Has("a") || c.Has("c") {
		t.Error("Has is wrong")
	}
	if _, err := c.Tensor("a"); err == nil || !strings.Contains(err.Error(), `"a"`) ||
		!strings.Contains(err.Error(), "U8") {
		t.Errorf("tensor of type U8: %v", err)
	}
	if _, err := c.Tensor("c"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(),
		`"c"`) {
		t.Errorf("unknown tensor: %v", err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := c.Tensor("b"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	c.Release(b)
}

func TestSingleFileGoesFirst(t *testing.T) {
	c, err := Open(Embedded("test", map[string][]byte{weightsFile: file(bytesA, 1),
		indexFile: []byte("broken")}))
	if err != nil || !c.Has("a") {
		t.Errorf("%v", err)
	}
}

func TestOpenMalformed(t *testing.T) {
	index := func(m string) []byte { return []byte(`{"weight_map":` + m + `}`) }
	tests := []struct {
		name  string
		files map[string][]byte
		want  string
	}{
		{"broken file", map[string][]byte{weightsFile: []byte("short")},
			"model.safetensors: malformed checkpoint: file of 5 bytes"},
		{"index is not JSON", map[string][]byte{indexFile: []byte("x")},
			"index.json: unexpected character 'x' at byte 0"},
		{"index is empty", map[string][]byte{indexFile: nil},
			"index.json: unexpected end at byte 0"},
		{"no weight map", map[string][]byte{indexFile: []byte(`{"metadata":{}}`)},
			"weight_map is missing or empty"},
		{"empty weight map", map[string][]byte{indexFile: index(`{}`)},
			"weight_map is missing or empty"},
		{"two weight maps", map[string][]byte{indexFile: []byte(
			`{"weight_map":{},"weight_map":{}}`)}, "weight_map occurs twice"},
		{"bytes behind", map[string][]byte{indexFile: []byte(`{"weight_map":{}}}`)},
			"data after the JSON object at byte 17"},
		{"deep metadata", map[string][]byte{indexFile: []byte(`{"metadata":` + strings.Repeat("[",
			1e6))}, "nested deeper than 32 levels"},
		{"no value", map[string][]byte{indexFile: []byte(`{"metadata":,"weight_map":{}}`)},
			"unexpected character ',' at byte 12"},
		{"name twice", map[string][]byte{indexFile: index(
			`{"a":"1.safetensors","a":"2.safetensors"}`)}, `tensor "a" occurs twice`},
		{"shard is a number", map[string][]byte{indexFile: index(`{"a":1}`)},
			`tensor "a": expected a string, got '1'`},
		{"parent", map[string][]byte{indexFile: index(`{"a":"../1.safetensors"}`)},
			`shard name "../1.safetensors" is not a plain file name`},
		{"subfolder", map[string][]byte{indexFile: index(`{"a":"x/1.safetensors"}`)},
			"not a plain file name"},
		{"backslash", map[string][]byte{indexFile: index(`{"a":"..\\1.safetensors"}`)},
			"not a plain file name"},
		{"dots", map[string][]byte{indexFile: index(`{"a":".."}`)}, "not a plain file name"},
		{"no name", map[string][]byte{indexFile: index(`{"a":""}`)}, "not a plain file name"},
		{"other kind", map[string][]byte{indexFile: index(`{"a":"full_logits.st"}`),
			"full_logits.st": file(bytesA, 1)}, `"full_logits.st" is not a .safetensors file`},
		{"missing shard", map[string][]byte{indexFile: index(`{"a":"1.safetensors"}`)},
			`shard "1.safetensors" is missing: model.safetensors.index.json names it`},
		{"truncated shard", map[string][]byte{indexFile: index(`{"a":"1.safetensors"}`),
			"1.safetensors": file(bytesA, 0)},
			"1.safetensors: malformed checkpoint: the file ends after 61 of at least 62 bytes"},
		{"empty shard", map[string][]byte{indexFile: index(`{"a":"1.safetensors"}`),
			"1.safetensors": nil}, "1.safetensors: malformed checkpoint: file of 0 bytes"},
		{"shard lacks tensor", map[string][]byte{indexFile: index(
			`{"a":"1.safetensors","b":"1.safetensors"}`), "1.safetensors": file(bytesA, 1)},
			`puts tensor "b" in 1.safetensors, which lacks it`},
		{"tensor in two shards",
			map[string][]byte{indexFile: index(
				`{"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"}`),
				"1.safetensors": file(bytesA, 1), "2.safetensors": file(bytesB, 2),
				"3.safetensors": file(bytesB, 2)},
			`tensor "b" is in both 2.safetensors and 3.safetensors`},
		{"tensor in another shard",
			map[string][]byte{indexFile: index(`{"a":"2.safetensors","b":"1.safetensors"}`),
				"1.safetensors": file(bytesA, 1), "2.safetensors": file(bytesB, 2)},
			`tensor "a" is in 1.safetensors, but model.safetensors.index.json says it is in 2.safetensors`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(Embedded("test", tt.files))
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("embedded: error %v, want ErrMalformed with %q", err, tt.want)
			}
			dir := t.TempDir()
			for name, data := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := Dir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(f); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(),
				tt.want) {
				t.Errorf("directory: error %v, want ErrMalformed with %q", err, tt.want)
			}
		})
	}
}

func TestDir(t *testing.T) {
	dir, blobs := t.TempDir(), t.TempDir()
	write := func(path, data string) {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "config.json"), "{}")
	write(filepath.Join(blobs, "blob"), "linked")
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "folder"), 0o700),
		os.Symlink(filepath.Join(blobs, "blob"), filepath.Join(dir, "link.json")),
		os.Symlink(filepath.Join(blobs, "gone"), filepath.Join(dir, "dangling.json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Names(); !slices.Equal(got, []string{"config.json", "link.json"}) ||
		f.Location() != dir {
		t.Errorf("names %v of %s", got, f.Location())
	}
	if data, err := f.ReadFile("link.json"); err != nil || string(data) != "linked" {
		t.Errorf("linked file: %q, %v", data, err)
	}
	if v, err := f.Map("link.json"); err != nil || string(v.Data) != "linked" || v.Close() != nil {
		t.Errorf("mapped link: %v, %v", v, err)
	}
	for _, name := range []string{"", ".", "..", "../x", "folder/x", "a\x00b", "/etc/passwd"} {
		if _, err := f.ReadFile(name); err == nil || !strings.Contains(err.Error(), "plain name") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := f.ReadFile("gone.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := f.Map("folder"); err == nil || !strings.Contains(err.Error(),
		"not a regular file") {
		t.Errorf("folder: %v", err)
	}
	if _, err := Dir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
}

// TestConcurrent lets readers meet Close; the race detector and the closed error are the judges.
func TestConcurrent(t *testing.T) {
	f, err := Dir(modelDir("qwen2-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, n := range c.Names() {
				tensor, err := c.Tensor(n)
				if err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				c.Release(tensor)
			}
		})
	}
	wg.Go(func() { c.Close() })
	wg.Wait()
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../1.safetensors"}}`))
	f.Add([]byte(`{"m":[[{"x":[null,true,-1e9,"\u0000"]}]]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		index, err := parseIndex(raw)
		if err != nil {
			return
		}
		for name, shard := range index {
			if filepath.Base(shard) != shard || !strings.HasSuffix(shard, ".safetensors") {
				t.Fatalf("tensor %q is in %q", name, shard)
			}
		}
	})
}
