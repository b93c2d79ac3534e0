package model_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// familyEncodings are those of encodings that every family is read in.
var familyEncodings = []string{"gptq", "awq", "packed in groups", "modelopt in a file of its own",
	"fp8 in blocks", "bitsandbytes of 8 bits", "torchao of 8 bits"}

// TestEveryFamilyIsQuantised quantises the linear modules of the layers of each family, by their
// names in checkpoints, but for one module that lists name as plain, and compares the model with
// one of the same weights as float32.
func TestEveryFamilyIsQuantised(t *testing.T) {
	names, all := tinyFamilies(t)
	for i, name := range names {
		f := all[name]
		for j, how := range familyEncodings {
			if testing.Short() && i%len(familyEncodings) != j {
				continue // the layouts take turns
			}
			t.Run(name+"/"+how, func(t *testing.T) { checkQuantised(t, f, how) })
		}
	}
}

func checkQuantised(t *testing.T, f tinyFamily, how string) {
	cfg := f.config(t)
	shapes, err := model.Adaptable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]bool{}
	for _, s := range shapes {
		of[s.Name] = true
	}
	x := encodings[slices.IndexFunc(encodings, func(x encoding) bool { return x.name == how })]
	random := rand.New(rand.NewPCG(1, 2))
	var coded, exact []checkpoint.Tensor
	plain, count, conv1D := "", 0, cfg.ModelType == "gpt2"
	for _, w := range weightsOf(t, cfg) {
		module := strings.TrimSuffix(w.Name, ".weight")
		fits := len(w.Shape) == 2 && w.Shape[0]%16 == 0 && w.Shape[1]%32 == 0 &&
			(of[module] || strings.Contains(module, ".experts."))
		if fits && plain == "" {
			plain, fits = module, false
		}
		if !fits {
			coded, exact = append(coded, w), append(exact, w)
			continue
		}
		count++
		e := writer{module: module, random: random}
		rows, cols, values := w.Shape[0], w.Shape[1], f32s(w.Data)
		if conv1D { // a linear module once it is quantised
			rows, cols, values = cols, rows, turned(values, cols)
		}
		values = x.encode(&e, rows, cols, values)
		coded = append(coded, e.tensors...)
		if conv1D {
			values = turned(values, cols)
		}
		w.Data = float32s(values)
		exact = append(exact, w)
	}
	if count == 0 {
		t.Skip("no module has features that every layout can have")
	}
	quantised := f
	quantised.Config = withQuantization(t, f.Config, x.config, plain)
	ids := promptOf(cfg)
	want := computed(t, cfg, sourceOf(exact)).forward(t, 0, piece{tokens: ids})
	got := computed(t, quantised.config(t), sourceOf(coded)).forward(t, 0, piece{tokens: ids})
	sum := 0.
	for _, row := range want {
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
	}
	std := math.Sqrt(sum / float64(len(want)*len(want[0])))
	if off := distance(got, want); !(off < 1e-3*std) {
		t.Errorf("logits are off by %.3g of %.3g with %d modules quantised", off, std, count)
	}
}

// plainLists are the members of quantization_config that name modules which are plain.
var plainLists = map[string]string{"awq": "modules_to_not_convert", "compressed-tensors": "ignore",
	"fp8": "modules_to_not_convert", "torchao": "modules_to_not_convert",
	"bitsandbytes": "llm_int8_skip_modules"}

// withQuantization is a configuration whose weights are quantised but for those of a module.
func withQuantization(t *testing.T, config json.RawMessage, how, plain string) json.RawMessage {
	t.Helper()
	var whole, q map[string]any
	if err := json.Unmarshal(config, &whole); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(how), &q); err != nil {
		t.Fatal(err)
	}
	method, _ := q["quant_method"].(string)
	if key := plainLists[method]; key != "" {
		list, _ := q[key].([]any)
		q[key] = append(list, plain, "lm_head")
	}
	whole["quantization_config"] = q
	raw, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func f32s(data []byte) (v []float32) {
	for at := 0; at < len(data); at += 4 {
		v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(data[at:])))
	}
	return v
}

// turned is a matrix of so many columns, turned about.
func turned(v []float32, cols int) []float32 {
	list := make([]float32, 0, len(v))
	for c := range cols {
		for at := c; at < len(v); at += cols {
			list = append(list, v[at])
		}
	}
	return list
}
