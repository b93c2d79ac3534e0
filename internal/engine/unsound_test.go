package engine_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// brokenModel is a copy of a checkpoint whose embedding of one token is NaN.
func brokenModel(t *testing.T, name string, token int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../testdata/models/"+name)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head := int(binary.LittleEndian.Uint64(b))
	var tensors map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets []int  `json:"data_offsets"`
	}
	if err := json.Unmarshal(b[8:8+head], &tensors); err != nil {
		t.Fatal(err)
	}
	e := tensors["model.embed_tokens.weight"]
	row := (e.Offsets[1] - e.Offsets[0]) / e.Shape[0]
	at := b[8+head+e.Offsets[0]+token*row:][:row]
	for i := 0; i < row; i += row / e.Shape[1] {
		if e.DType == "F32" {
			binary.LittleEndian.PutUint32(at[i:], math.Float32bits(float32(math.NaN())))
		} else {
			binary.LittleEndian.PutUint16(at[i:], 0x7fff)
		}
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestUnsoundHead opens a model whose head, which is its embedding, has a NaN: all requests would
// fail, so it is refused by the tensor's name.
func TestUnsoundHead(t *testing.T) {
	c := config.Default()
	c.Model.Path, c.Model.SkipTokenizerInit = brokenModel(t, "llama-tiny", 37), true
	_, _, err := engine.Open(t.Context(), engine.Options{Config: c})
	if want := `tensor "model.embed_tokens.weight": element [37, 0] is NaN`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, not %s", err, want)
	}
}

// TestUnsoundLogits computes NaN for one request among others: it ends alone, with an error and not
// with token 0 for ever, and the others have the tokens that they have without it.
func TestUnsoundLogits(t *testing.T) {
	const broken = 37
	for _, async := range []bool{true, false} {
		e := openEngine(t, func(c *config.Config) {
			c.Model.Path, c.Model.SkipTokenizerInit = brokenModel(t, "qwen3moe-tiny", broken), true
			c.Model.DType, c.Schedule.Async = "float32", async
		})
		params := sample.Params{TopP: 1, RepetitionPenalty: 1, Temperature: 1, Seed: 3,
			MaxTokens: 20,
			EOS:       -1, Logprobs: sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs,
			LogitBias: []sample.Bias{{ID: broken, Value: -100}}}
		ask := func(first int32) *engine.Request {
			r := engine.NewRequest([]int32{first, 5, 6, 7}, params)
			r.Raw = true
			return r
		}
		want := receiveAll(t, e, []*engine.Request{ask(1), ask(2)}, func(int) {})
		got := receiveAll(t, e, []*engine.Request{ask(1), ask(broken), ask(2)}, func(int) {})
		if err := got[1].err; !errors.Is(err, engine.ErrUnsound) || errors.Is(err, io.EOF) ||
			len(got[1].tokens) > 0 {
			t.Errorf("the unsound request ended with %v after %v", err, got[1].tokens)
		}
		same(t, "beside it", []received{got[0], got[2]}, want)
		if err := e.Healthy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
