package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// encoding writes a matrix of rows by cols in a layout, and returns the weights that it then has.
// also is what it is of beside layers: routers
// (and gates of shared experts), or the head.
type encoding struct {
	name, config string
	encode       func(e *writer, rows, cols int, w []float32) []float32
	also         string
}

// writer collects the tensors of a module.
type writer struct {
	module  string
	random  *rand.Rand
	tensors []checkpoint.Tensor
}

func (e *writer) add(name string, dtype checkpoint.DType, data []byte, shape ...int) {
	e.tensors = append(e.tensors, checkpoint.Tensor{Name: e.module + name, DType: dtype,
		Shape: shape, Data: data})
}

func words(v []uint32) (data []byte) {
	for _, w := range v {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	return data
}

func float32s(v []float32) (data []byte) {
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return data
}

// affine are weights as codes of some bits less a zero point, times a scale, of each group of input
// features.
type affine struct {
	groups       int
	codes, zeros []int // [rows][cols], [rows][groups]
	scales       []float32
	weights      []float32
}

// round makes codes of w, of which group says in which group each input feature is.
func (e *writer) round(rows, cols, bits, groups int, symmetric bool, w []float32,
	group func(col int) int) *affine {
	a := &affine{groups: groups, codes: make([]int, rows*cols), zeros: make([]int, rows*groups),
		scales: make([]float32, rows*groups), weights: make([]float32, rows*cols)}
	middle := 1 << (bits - 1)
	for r := range rows {
		for g := range groups {
			largest := float32(1e-3)
			for c := range cols {
				if group(c) == g {
					largest = max(largest, w[r*cols+c], -w[r*cols+c])
				}
			}
			a.scales[r*groups+g], a.zeros[r*groups+g] = largest/float32(middle-1), middle
			if !symmetric {
				a.zeros[r*groups+g] += e.random.IntN(5) - 2
			}
		}
		for c := range cols {
			at := r*groups + group(c)
			q := int(math.Round(float64(w[r*cols+c]/a.scales[at]))) + a.zeros[at]
			q = max(0, min(2*middle-1, q))
			a.codes[r*cols+c] = q
			a.weights[r*cols+c] = float32(q-a.zeros[at]) * a.scales[at]
		}
	}
	return a
}

func inOrder(size int) func(int) int { return func(col int) int { return col / size } }

// gptq writes codes as GPTQ has them; minus is what is subtracted of zero points.
func (e *writer) gptq(rows, cols, bits, minus int, a *affine) {
	per := 32 / bits
	weights, zeros := make([]uint32, cols/per*rows), make([]uint32, a.groups*rows/per)
	scales := make([]float32, a.groups*rows)
	for r := range rows {
		for c := range cols {
			weights[c/per*rows+r] |= uint32(a.codes[r*cols+c]) << (c % per * bits)
		}
		for g := range a.groups {
			z := uint32(a.zeros[r*a.groups+g]-minus) & (1<<bits - 1)
			zeros[g*(rows/per)+r/per] |= z << (r % per * bits)
			scales[g*rows+r] = a.scales[r*a.groups+g]
		}
	}
	e.add(".qweight", checkpoint.I32, words(weights), cols/per, rows)
	e.add(".qzeros", checkpoint.I32, words(zeros), a.groups, rows/per)
	e.add(".scales", checkpoint.F32, float32s(scales), a.groups, rows)
}

// packed writes codes as compressed-tensors packs them.
func (e *writer) packed(rows, cols, bits int, symmetric bool, a *affine) {
	per := 32 / bits
	weights := make([]uint32, rows*cols/per)
	zeros := make([]uint32, (rows+per-1)/per*a.groups)
	for r := range rows {
		for c := range cols {
			weights[r*(cols/per)+c/per] |= uint32(a.codes[r*cols+c]) << (c % per * bits)
		}
		for g := range a.groups {
			zeros[r/per*a.groups+g] |= uint32(a.zeros[r*a.groups+g]) << (r % per * bits)
		}
	}
	e.add(".weight_packed", checkpoint.I32, words(weights), rows, cols/per)
	e.add(".weight_scale", checkpoint.F32, float32s(a.scales), rows, a.groups)
	if !symmetric {
		e.add(".weight_zero_point", checkpoint.I32, words(zeros), (rows+per-1)/per, a.groups)
	}
	shape := binary.LittleEndian.AppendUint64(nil, uint64(rows))
	e.add(".weight_shape", checkpoint.I64, binary.LittleEndian.AppendUint64(shape, uint64(cols)), 2)
}

// e2m1 writes numbers of four bits, of which scale says what those of a group share by its largest
// one, and returns the scales' codes and the weights.
func (e *writer) e2m1(name string, rows, cols, group int, w []float32,
	scale func(largest float32) (byte, float32)) (scales []byte, weights []float32) {
	numbers := [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	codes, weights := make([]byte, rows*cols/2), make([]float32, rows*cols)
	for first := 0; first < len(w); first += group {
		largest := float32(1e-3)
		for _, v := range w[first : first+group] {
			largest = max(largest, v, -v)
		}
		code, s := scale(largest)
		scales = append(scales, code)
		for i := first; i < first+group; i++ {
			size, sign := max(w[i], -w[i])/s, 0
			best := 0
			for q, x := range numbers {
				if math.Abs(float64(x-size)) < math.Abs(float64(numbers[best]-size)) {
					best = q
				}
			}
			weights[i] = numbers[best] * s
			if w[i] < 0 {
				sign, weights[i] = 8, -weights[i]
			}
			codes[i/2] |= byte((best | sign) << (i % 2 * 4))
		}
	}
	e.add(name, checkpoint.U8, codes, rows, cols/2)
	return scales, weights
}

// e4m3 writes numbers of eight bits, of which so many output and input features share a scale, and
// returns the weights.
func (e *writer) e4m3(rows, cols, perRow, perCol int, name string, w []float32) []float32 {
	across := (cols + perCol - 1) / perCol
	scales := make([]float32, (rows+perRow-1)/perRow*across)
	at := func(i int) *float32 { return &scales[i/cols/perRow*across+i%cols/perCol] }
	for i, v := range w {
		*at(i) = max(*at(i), v/400, -v/400, 1e-4)
	}
	codes, weights := make([]byte, len(w)), make([]float32, len(w))
	form := compute.Codes{Type: compute.CodeE4M3}
	for i, v := range w {
		codes[i] = e4m3(v / *at(i))
		weights[i] = form.Number(codes[i]) * *at(i)
	}
	e.add(".weight", checkpoint.F8E4M3, codes, rows, cols)
	if len(scales) == 1 {
		e.add(name, checkpoint.F32, float32s(scales))
	} else {
		e.add(name, checkpoint.F32, float32s(scales), len(scales)/across, 1, across, 1)
	}
	return weights
}

const compressedTensors = `{"quant_method":"compressed-tensors","format":"%s","ignore":` +
	`["lm_head","re:.*gate$"],"config_groups":{"group_0":{"targets":["Linear"],"weights":%s}}}`

var encodings = []encoding{
	{"gptq", `{"quant_method":"gptq","bits":4,"group_size":32,"sym":false}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 4, cols/32, false, w, inOrder(32))
			e.gptq(rows, cols, 4, 1, a)
			return a.weights
		}, ""},
	{"gptq_v2 of 8 bits", `{"quant_method":"gptq","bits":8,"group_size":-1,"sym":true,` +
		`"checkpoint_format":"gptq_v2","desc_act":true}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 8, 1, true, w, inOrder(cols))
			e.gptq(rows, cols, 8, 0, a)
			return a.weights
		}, ""},
	{"gptq in an order", `{"quant_method":"gptq","bits":4,"group_size":16,"desc_act":true}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			order := e.random.Perm(cols)
			index := make([]uint32, cols)
			for at, col := range order {
				index[col] = uint32(at / 16)
			}
			a := e.round(rows, cols, 4, cols/16, true, w,
				func(col int) int { return int(index[col]) })
			e.gptq(rows, cols, 4, 1, a)
			e.add(".g_idx", checkpoint.I32, words(index), cols)
			return a.weights
		}, ""},
	{"gptq with the head", `{"quant_method":"gptq","bits":4,"group_size":32,"sym":false,` +
		`"lm_head":true,"dynamic":{"-:.*gate$":{}}}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 4, cols/32, false, w, inOrder(32))
			e.gptq(rows, cols, 4, 1, a)
			return a.weights
		}, "head"},
	{"auto-round", `{"quant_method":"auto-round","bits":4,"group_size":32,"sym":true,` +
		`"data_type":"int","packing_format":"auto_round:auto_gptq","extra_config":` +
		`{"lm_head":{"bits":16,"data_type":"fp"}}}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 4, cols/32, true, w, inOrder(32))
			e.gptq(rows, cols, 4, 1, a)
			return a.weights
		}, ""},
	{"modelopt", `{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			scales, weights := e.e2m1(".weight", rows, cols, 16, w, func(largest float32) (byte,
				float32) {
				code := e4m3(largest / 6 * 512)
				return code, (&compute.Codes{Type: compute.CodeE4M3}).Number(code) / 512
			})
			e.add(".weight_scale", checkpoint.F8E4M3, scales, rows, cols/16)
			e.add(".weight_scale_2", checkpoint.F32, float32s([]float32{1. / 512}))
			return weights
		}, ""},
	{"modelopt in a file of its own", `{"quant_method":"modelopt","quantization":` +
		`{"quant_algo":"FP8","kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			return e.e4m3(rows, cols, rows, cols, ".weight_scale", w)
		}, ""},
	{"modelopt of a scale for each feature", `{"quant_method":"modelopt","quant_algo":` +
		`"FP8_PER_CHANNEL_PER_TOKEN"}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			return e.e4m3(rows, cols, 1, cols, ".weight_scale", w)
		}, ""},
	{"modelopt in blocks", `{"quant_method":"modelopt","quant_algo":"fp8_pb_wo"}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			return e.e4m3(rows, cols, 128, 128, ".weight_scale", w)
		}, ""},
	{"torchao of 8 bits", `{"quant_method":"torchao","quant_type":{"default":{"_type":` +
		`"Int8WeightOnlyConfig","_version":2,"_data":{"group_size":32}}},` +
		`"include_input_output_embeddings":false,"modules_to_not_convert":["lm_head"]}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 8, cols/32, false, w, inOrder(32))
			codes, zeros := make([]byte, rows*cols), make([]byte, rows*cols/32)
			for i, q := range a.codes {
				codes[i] = byte(int8(q - 128))
			}
			for i, z := range a.zeros {
				zeros[i] = byte(int8(z - 128))
			}
			e.add("._weight_qdata", checkpoint.I8, codes, rows, cols)
			e.add("._weight_scale", checkpoint.F32, float32s(a.scales), rows, cols/32)
			e.add("._weight_zero_point", checkpoint.I8, zeros, rows, cols/32)
			return a.weights
		}, ""},
	{"awq", `{"quant_method":"awq","bits":4,"group_size":32}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 4, cols/32, false, w, inOrder(32))
			order := [8]int{0, 2, 4, 6, 1, 3, 5, 7}
			weights, zeros := make([]uint32, cols*rows/8), make([]uint32, a.groups*rows/8)
			scales := make([]float32, a.groups*rows)
			for i := range rows / 8 {
				for half, feature := range order {
					r := 8*i + feature
					for c := range cols {
						weights[c*rows/8+i] |= uint32(a.codes[r*cols+c]) << (4 * half)
					}
					for g := range a.groups {
						zeros[g*rows/8+i] |= uint32(a.zeros[r*a.groups+g]) << (4 * half)
						scales[g*rows+r] = a.scales[r*a.groups+g]
					}
				}
			}
			e.add(".qweight", checkpoint.I32, words(weights), cols, rows/8)
			e.add(".qzeros", checkpoint.I32, words(zeros), a.groups, rows/8)
			e.add(".scales", checkpoint.F32, float32s(scales), a.groups, rows)
			return a.weights
		}, ""},
	{"packed in groups", fmt.Sprintf(compressedTensors, "pack-quantized",
		`{"num_bits":4,"strategy":"group","group_size":32,"symmetric":false}`),
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 4, cols/32, false, w, inOrder(32))
			e.packed(rows, cols, 4, false, a)
			return a.weights
		}, ""},
	{"packed of 8 bits, the head too", `{"quant_method":"compressed-tensors","format":` +
		`"pack-quantized","ignore":["re:.*gate$"],"config_groups":{"group_0":{"targets":` +
		`["Linear"],"weights":{"num_bits":8,"strategy":"channel","group_size":null}}}}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			a := e.round(rows, cols, 8, 1, true, w, inOrder(cols))
			e.packed(rows, cols, 8, true, a)
			return a.weights
		}, "head"},
	{"nvfp4", fmt.Sprintf(compressedTensors, "nvfp4-pack-quantized",
		`{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16}`),
		func(e *writer, rows, cols int, w []float32) []float32 {
			scales, weights := e.e2m1(".weight_packed", rows, cols, 16, w, func(largest float32) (
				byte, float32) {
				code := e4m3(largest / 6 * 512)
				return code, (&compute.Codes{Type: compute.CodeE4M3}).Number(code) / 512
			})
			e.add(".weight_scale", checkpoint.F8E4M3, scales, rows, cols/16)
			e.add(".weight_global_scale", checkpoint.F32, float32s([]float32{512}), 1)
			return weights
		}, ""},
	{"mxfp4", fmt.Sprintf(compressedTensors, "mxfp4-pack-quantized",
		`{"num_bits":4,"type":"float","strategy":"group","group_size":32}`),
		func(e *writer, rows, cols int, w []float32) []float32 {
			scales, weights := e.e2m1(".weight_packed", rows, cols, 32, w, func(largest float32) (
				byte, float32) {
				_, exponent := math.Frexp(float64(largest / 6))
				return byte(exponent + 127), float32(math.Ldexp(1, exponent))
			})
			e.add(".weight_scale", checkpoint.U8, scales, rows, cols/32)
			return weights
		}, ""},
	{"fp8 in blocks", `{"quant_method":"fp8","weight_block_size":[16,32],"activation_scheme":` +
		`"dynamic","modules_to_not_convert":["gate"]}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			codes, weights := make([]byte, rows*cols), make([]float32, rows*cols)
			scales := make([]float32, rows/16*cols/32)
			for i := range scales {
				scales[i] = 1e-3 * (1 + e.random.Float32())
			}
			form := compute.Codes{Type: compute.CodeE4M3}
			for i := range codes {
				scale := scales[i/cols/16*(cols/32)+i%cols/32]
				codes[i] = e4m3(w[i] / scale)
				weights[i] = form.Number(codes[i]) * scale
			}
			e.add(".weight", checkpoint.F8E4M3, codes, rows, cols)
			e.add(".weight_scale_inv", checkpoint.F32, float32s(scales), rows/16, cols/32)
			return weights
		}, ""},
	{"bitsandbytes of 8 bits", `{"quant_method":"bitsandbytes","load_in_8bit":true}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			codes, weights := make([]byte, rows*cols), make([]float32, rows*cols)
			largest := make([]float32, rows)
			for i, v := range w {
				largest[i/cols] = max(largest[i/cols], v, -v, 1e-3)
			}
			for i, v := range w {
				q := math.Round(float64(v / largest[i/cols] * 127))
				codes[i], weights[i] = byte(int8(q)), float32(q)*(largest[i/cols]/127)
			}
			e.add(".weight", checkpoint.I8, codes, rows, cols)
			e.add(".SCB", checkpoint.F32, float32s(largest), rows)
			return weights
		}, "routers"},
	{"fp4 without nested scales", `{"quant_method":"bitsandbytes","load_in_4bit":true,` +
		`"bnb_4bit_quant_type":"fp4"}`,
		func(e *writer, rows, cols int, w []float32) []float32 {
			numbers := make([]float32, 16)
			for i := range numbers {
				numbers[i] = float32((i*7)%16-8) / 8
			}
			codes, weights := make([]byte, rows*cols/2), make([]float32, rows*cols)
			largest := make([]float32, rows*cols/32)
			for i, v := range w {
				largest[i/32] = max(largest[i/32], v, -v, 1e-3)
			}
			for i, v := range w {
				best := 0
				for q, x := range numbers {
					if math.Abs(float64(x*largest[i/32]-v)) <
						math.Abs(float64(numbers[best]*largest[i/32]-v)) {
						best = q
					}
				}
				codes[i/2] |= byte(best << (4 - i%2*4))
				weights[i] = numbers[best] * largest[i/32]
			}
			state := fmt.Sprintf(`{"quant_type":"fp4","blocksize":32,"dtype":"float16",`+
				`"shape":[%d,%d]}`, rows, cols)
			e.add(".weight", checkpoint.U8, codes, rows*cols/2, 1)
			e.add(".weight.absmax", checkpoint.F32, float32s(largest), rows*cols/32)
			e.add(".weight.quant_map", checkpoint.F32, float32s(numbers), 16)
			e.add(".weight.quant_state.bitsandbytes__fp4", checkpoint.U8, []byte(state), len(state))
			return weights
		}, "routers"},
}

// e4m3 is the code nearest to a number of magnitude below 448.
func e4m3(v float32) byte {
	form, sign := compute.Codes{Type: compute.CodeE4M3}, byte(0)
	if v < 0 {
		v, sign = -v, 0x80
	}
	above := byte(sort.Search(0x7e, func(code int) bool { return form.Number(byte(code)) >= v }))
	if above > 0 && v-form.Number(above-1) < form.Number(above)-v {
		above--
	}
	return above | sign
}

// quantisable tells whether a tensor is one of a module of a layer that can have every layout, or
// of those that a layout is of also.
func quantisable(t checkpoint.Tensor, also string) bool {
	if len(t.Shape) != 2 || !strings.HasSuffix(t.Name, ".weight") || t.Shape[1]%32 != 0 {
		return false
	}
	if t.Name == "lm_head.weight" {
		return also == "head"
	}
	if !strings.Contains(t.Name, "layers.") {
		return false
	}
	if strings.HasSuffix(t.Name, "gate.weight") || strings.Contains(t.Name, "router") {
		return also == "routers"
	}
	return t.Shape[0]%16 == 0
}

// encoded writes a shipped fixture's weights in a layout, and in another folder what they then are.
func encoded(t *testing.T, name string, x encoding) (coded, plain fixture) {
	t.Helper()
	_, weights := shipped(name).open(t)
	var quantised, exact []checkpoint.Tensor
	random := rand.New(rand.NewPCG(1, 2))
	count := 0
	for _, tensor := range weights.Names() {
		w, err := weights.Tensor(tensor)
		if err != nil {
			t.Fatal(err)
		}
		if !quantisable(w, x.also) {
			quantised, exact = append(quantised, w), append(exact, w)
			continue
		}
		count++
		e := writer{module: strings.TrimSuffix(tensor, ".weight"), random: random}
		v := x.encode(&e, w.Shape[0], w.Shape[1], bf16s(w.Data))
		quantised = append(quantised, e.tensors...)
		exact = append(exact, checkpoint.Tensor{Name: tensor, DType: checkpoint.F32,
			Shape: w.Shape, Data: float32s(v)})
	}
	if count == 0 {
		t.Fatalf("no weights of %s are quantised", name)
	}
	write := func(tensors []checkpoint.Tensor, quantization string) fixture {
		raw, err := os.ReadFile(filepath.Join(models, name, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]json.RawMessage
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		if quantization != "" {
			config["quantization_config"] = json.RawMessage(quantization)
		}
		if raw, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "config.json"), raw)
		writeFile(t, filepath.Join(dir, "model.safetensors"), safetensors(t, tensors))
		return fixture{dir: dir, config: "config.json"}
	}
	return write(quantised, x.config), write(exact, "")
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func bf16s(data []byte) (v []float32) {
	for at := 0; at < len(data); at += 2 {
		bits := uint32(binary.LittleEndian.Uint16(data[at:]))
		v = append(v, math.Float32frombits(bits<<16))
	}
	return v
}

// safetensors is a file of tensors.
func safetensors(t *testing.T, tensors []checkpoint.Tensor) []byte {
	t.Helper()
	type entry struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, body := map[string]entry{}, []byte(nil)
	for _, x := range tensors {
		shape := append([]int{}, x.Shape...)
		header[x.Name] = entry{x.DType.String(), shape, [2]int{len(body), len(body) + len(x.Data)}}
		body = append(body, x.Data...)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	for len(raw)%8 != 0 {
		raw = append(raw, ' ')
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(raw)))
	return slices.Concat(file, raw, body)
}

// TestEncoded writes weights of families whose rows, heads and experts are divided in different
// ways in every layout, and compares the model with one of the same weights as float32; and it
// wants the same bits however it is divided.
func TestEncoded(t *testing.T) {
	families := []string{"phi3-tiny", "gptneox-tiny", "cohere2-tiny", "granitemoe-tiny", "opt-tiny",
		"qwen2moe-tiny", "deepseek-v3-tiny", "qwen3next-tiny"}
	if testing.Short() {
		families = families[:4]
	}
	for i, name := range families {
		for j, x := range encodings {
			if testing.Short() && i != j%len(families) {
				continue // the families take turns
			}
			t.Run(name+"/"+x.name, func(t *testing.T) {
				coded, plain := encoded(t, name, x)
				opt := cpu.Options{Threads: 2, DType: compute.Float32}
				all, one := piece{tokens: prompt(20)}, layers.Group{Size: 1}
				want := loadShard(t, plain, opt, one).forward(t, 0, all)
				got := loadShard(t, coded, opt, one).forward(t, 0, all)
				var worst, sum float64
				for i := range want {
					for j, v := range want[i] {
						worst = max(worst, math.Abs(float64(got[i][j]-v)))
						sum += float64(v) * float64(v)
					}
				}
				std := math.Sqrt(sum / float64(len(want)*len(want[0])))
				if !(worst < 1e-4*std) {
					t.Errorf("logits are off by %.3g of %.3g", worst, std)
				}
				checkSameBits(t, coded, compute.BFloat16, prompt(40), 2, 4)
				cfg, _ := coded.open(t)
				if _, err := model.ReadBytes(cfg, model.Shapes(), one, model.Stage{}); err != nil {
					t.Errorf("of tensors that are not there: %v", err)
				}
			})
		}
	}
}
