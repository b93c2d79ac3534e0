package checkpoint

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/eagleray/eagleray/internal/rank/model/gguf/gguftest"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

const ggufModel = "../../../../testdata/gguf/qwen3-Q4_0/qwen3-Q4_0.gguf"

// TestGGUFFolder opens a model by its file, by the folder that it is alone in, held, and by another
// process that knows its content.
func TestGGUFFolder(t *testing.T) {
	content, err := os.ReadFile(ggufModel)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "m.gguf", content)
	write(t, dir, "config.json", []byte(`{"model_type":"stub"}`)) // as beside files on the Hub
	write(t, dir, "mmproj-m.gguf", []byte("of pictures"))
	file := filepath.Join(dir, "m.gguf")
	held := hold(t, file)
	open := func(path string) func() (Folder, error) {
		return func() (Folder, error) { return Dir(path) }
	}
	for name, f := range map[string]func() (Folder, error){"file": open(file), "folder": open(dir),
		"held": func() (Folder, error) { return held, nil },
		"known": func() (Folder, error) {
			return Known(file, held.Files(), nil, open(file)), nil
		},
		"known elsewhere": func() (Folder, error) {
			return Known(filepath.Join(dir, "gone.gguf"), held.Files(), []int{os.Getpid()},
				open("gone")), nil
		}} {
		folder, err := f()
		if err != nil {
			t.Fatal(err)
		}
		config, err := ReadConfig(folder)
		if err != nil || !strings.Contains(string(config), `"model_type":"qwen3"`) {
			t.Errorf("%s: config.json is %.100s, %v", name, config, err)
		}
		if names := folder.Names(); !slices.Equal(names, []string{"config.json",
			"generation_config.json", "m.gguf", "tokenizer.json", "tokenizer_config.json"}) {
			t.Errorf("%s: it has %q", name, names)
		}
		if _, err := folder.ReadFile("README.md"); !notExist(err) {
			t.Errorf("%s: %v", name, err)
		}
		c, err := Open(folder)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		q, err := c.Tensor("model.layers.1.self_attn.q_proj.weight")
		if err != nil || q.DType != Quantised || q.Blocks.String() != "Q4_0" ||
			!slices.Equal(q.Shape, []int{192, 256}) || int64(len(q.Data)) != q.Size(192*256) {
			t.Errorf("%s: %v of %v, %v", name, q.DType, q.Shape, err)
		}
		c.Release(q)
		if err := errors.Join(c.CheckStable(), c.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !HasGGUF(held) || len(held.Files()) != 1 {
		t.Errorf("%d files are held", len(held.Files()))
	}
	write(t, dir, "model.safetensors", nil)
	if folder, err := Dir(dir); err != nil || HasGGUF(folder) {
		t.Errorf("beside safetensors: %v", err)
	}
}

// parts are the files of a model that is split.
func parts(change func(n int, pairs []gguftest.Pair) []gguftest.Pair) [][]byte {
	files := [][]gguftest.Tensor{
		{{Name: "token_embd.weight", Dims: []uint64{32, 3}, Data: make([]byte, 384)}},
		{{Name: "blk.0.attn_norm.weight", Dims: []uint64{32}, Data: bytes.Repeat([]byte{1}, 128)},
			{Name: "output.weight", Dims: []uint64{32, 3}, Data: make([]byte, 384)}}}
	all := make([][]byte, len(files))
	for n, tensors := range files {
		pairs := []gguftest.Pair{{Key: "split.no", Value: int32(n)},
			{Key: "split.count", Value: int32(len(files))}}
		if n == 0 {
			pairs = append(pairs, gguftest.Pair{Key: "general.architecture", Value: "qwen2"})
			for key, v := range map[string]uint32{"embedding_length": 32, "block_count": 1,
				"attention.head_count": 2, "context_length": 64} {
				pairs = append(pairs, gguftest.Pair{Key: "qwen2." + key, Value: v})
			}
		}
		if change != nil {
			pairs = change(n, pairs)
		}
		all[n] = gguftest.File(pairs, tensors)
	}
	return all
}

// TestGGUFSplit opens a model in two files, by any of them and by their folder.
func TestGGUFSplit(t *testing.T) {
	lay := func(files [][]byte) (dir string) {
		dir = t.TempDir()
		for n, content := range files {
			write(t, dir, partsOf("m-00001-of-00002.gguf")[n], content)
		}
		return dir
	}
	dir := lay(parts(nil))
	for _, name := range []string{"", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"} {
		held := hold(t, filepath.Join(dir, name))
		config, err := ReadConfig(held)
		if err != nil || !strings.Contains(string(config), `"tie_word_embeddings":false`) {
			t.Errorf("%q: config.json is %s, %v", name, config, err)
		}
		c, err := Open(held)
		if err != nil {
			t.Fatal(err)
		}
		norm, err := c.Tensor("model.layers.0.input_layernorm.weight")
		if err != nil || norm.Data[0] != 1 || len(c.Names()) != 3 || len(held.Files()) != 2 {
			t.Errorf("%q: %v, %d tensors of %d files", name, err, len(c.Names()),
				len(held.Files()))
		}
		c.Close()
	}
	missing := lay(parts(nil)[:1])
	other := lay(parts(func(n int, pairs []gguftest.Pair) []gguftest.Pair {
		pairs[0].Value = int32(0)
		return pairs
	}))
	for path, want := range map[string]string{
		missing: "m-00002-of-00002.gguf is missing, one of the 2 files of the model",
		other:   "is named as number 2 of 2 files, but its split.no is 0",
	} {
		folder, err := Dir(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ReadConfig(folder)
		c, err2 := Open(folder)
		if c != nil || !errors.Is(err, ErrMalformed) || !errors.Is(err2, ErrMalformed) ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err2.Error(), want) {
			t.Errorf("%v, %v; want %q", err, err2, want)
		}
	}
}

// TestGGUFIdentity finds one byte in the middle of a tensor of a large file, and one in the header.
func TestGGUFIdentity(t *testing.T) {
	data := make([]byte, 20<<20)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	name := gguftest.Pair{Key: "general.name", Value: "a"}
	sum := func(name gguftest.Pair) string {
		file := gguftest.File([]gguftest.Pair{name}, []gguftest.Tensor{{Name: "small",
			Dims: []uint64{256}, Data: make([]byte, 1024)}, {Name: "large",
			Dims: []uint64{uint64(len(data) / 4)}, Data: data}})
		dir := t.TempDir()
		write(t, dir, "m.gguf", file)
		return hold(t, dir).Files()[0].Sum
	}
	first := sum(name)
	if again := sum(name); again != first {
		t.Errorf("a copy is %s, not %s", again, first)
	}
	data[len(data)/2]++
	if other := sum(name); other == first {
		t.Error("another tensor is the same")
	}
	data[len(data)/2]--
	name.Value = "b"
	if other := sum(name); other == first {
		t.Error("another name is the same")
	}
}

// TestGGUFBytePairs encodes texts as the tokenizer.json does that the file was made of.
func TestGGUFBytePairs(t *testing.T) {
	folder, err := Dir(ggufModel)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tokenizer.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tokenizer.Load("../../../../testdata/models/go-std-tiny")
	if err != nil {
		t.Fatal(err)
	}
	if x, y := got.Config().ChatTemplates["default"], want.Config().ChatTemplates["default"]; x != y {
		t.Errorf("the chat template is %q, not %q", x, y)
	}
	if x, y := got.Config().EOSToken, want.Config().EOSToken; x != y {
		t.Errorf("texts end with %q, not %q", x, y)
	}
	compare(t, got, want)
}

var texts = []string{"", " ", "Hello, world!", "What does strings.Index do?\n\n\tindent  two",
	"é vs e\u0301, ﬁ, 日本語 и кириллица 🙂", "12345 x1y22 don't WE'LL", "a\r\nb \r\n",
	"<|im_start|>user\nhi<|im_end|>\n", "func (b *Builder) String() string", "\x00\xff broken"}

func compare(t *testing.T, got, want *tokenizer.Tokenizer) {
	t.Helper()
	for _, text := range texts {
		for _, special := range []bool{false, true} {
			x, y := got.Encode(text, special), want.Encode(text, special)
			if !slices.Equal(x, y) {
				t.Errorf("%q (%v) is %v, not %v", text, special, x, y)
			}
			if x, y := got.Decode(x, special), want.Decode(y, special); x != y {
				t.Errorf("%q (%v) comes back as %q, not %q", text, special, x, y)
			}
		}
	}
}

// TestGGUFSentencePieces makes a file of a model of SentencePiece as llama.cpp's converter does,
// and encodes texts as the model itself.
func TestGGUFSentencePieces(t *testing.T) {
	model, err := os.ReadFile("../../../text/tokenizer/testdata/sources/sp-llama/tokenizer.model")
	if err != nil {
		t.Fatal(err)
	}
	raw := model
	var pieces []string
	var scores []float32
	var kinds []int32
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeTag(raw)
		field, m := protowire.ConsumeBytes(raw[n:])
		if raw = raw[n+m:]; number != 1 {
			continue
		}
		piece, score, kind := "", float32(0), int32(1)
		for len(field) > 0 {
			number, _, n := protowire.ConsumeTag(field)
			field = field[n:]
			switch number {
			case 1:
				piece, n = protowire.ConsumeString(field)
			case 2:
				var bits uint32
				bits, n = protowire.ConsumeFixed32(field)
				score = math.Float32frombits(bits)
			case 3:
				var v uint64
				v, n = protowire.ConsumeVarint(field)
				kind = int32(v)
			}
			field = field[n:]
		}
		pieces, scores, kinds = append(pieces, piece), append(scores, score), append(kinds, kind)
	}
	dir := t.TempDir()
	write(t, dir, "m.gguf", gguftest.File([]gguftest.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.embedding_length", Value: uint32(1)},
		{Key: "llama.block_count", Value: uint32(1)},
		{Key: "llama.attention.head_count", Value: uint32(1)},
		{Key: "llama.context_length", Value: uint32(64)},
		{Key: "tokenizer.ggml.model", Value: "llama"},
		{Key: "tokenizer.ggml.tokens", Value: pieces},
		{Key: "tokenizer.ggml.scores", Value: scores},
		{Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.unknown_token_id", Value: uint32(0)}}, []gguftest.Tensor{
		{Name: "token_embd.weight", Dims: []uint64{1, uint64(len(pieces))},
			Data: make([]byte, 4*len(pieces))},
		{Name: "blk.0.attn_norm.weight", Dims: []uint64{1}, Data: make([]byte, 4)}}))
	folder, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tokenizer.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	plain := t.TempDir()
	write(t, plain, "tokenizer.model", model)
	write(t, plain, "tokenizer_config.json", []byte(`{"legacy":true,"add_bos_token":true}`))
	want, err := tokenizer.Load(plain)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, want)
}
