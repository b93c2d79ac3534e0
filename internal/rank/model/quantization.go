package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Quantization is how weights are stored, as quantization_config says.
type Quantization struct {
	// Method is quant_method.
	Method string
	// ActOrder says that input features lie in an order of groups: GPTQ's desc_act.
	ActOrder bool
	// of is the layout of a module, nil for a plain one.
	of func(module string) layers.Format
	// outside is layers.Stored's Outside.
	outside bool
}

// methods read what follows from quant_method.
var methods = map[string]func(f *checkpoint.Fields, q *Quantization){
	"gptq": readGPTQ, "awq": readAWQ, "mxfp4": readMXFP4, "fp8": readFP8,
	"fbgemm_fp8": readFBGEMM, "bitsandbytes": readBitsAndBytes,
	"compressed-tensors": readCompressedTensors, "gguf": readGGUF, "auto-round": readAutoRound,
	"modelopt": readModelOpt, "torchao": readTorchAO,
}

// readQuantization reads the object of a key, of a method unless it says another.
func readQuantization(f *checkpoint.Fields, c *Config, fam *family, key, method string) {
	inner := f.Object(key)
	if inner == nil {
		return
	}
	q := &Quantization{Method: strings.ToLower(inner.Text("quant_method", method))}
	read := methods[q.Method]
	switch {
	case read == nil:
		f.Fail(checkpoint.ErrUnsupported, key, "(quant_method %s; %s are read; of the plain model "+
			"--quantization int8 and int4 make as much)", checkpoint.Short(q.Method),
			strings.Join(methodNames(), ", "))
		return
	case fam.encoder:
		f.Fail(checkpoint.ErrUnsupported, key, "of %s, whose weights are read as they are",
			c.ModelType)
		return
	}
	read(inner, q)
	f.Adopt(inner)
	c.Quantization, c.Scheme = q, layers.Stored{Of: q.of, Outside: q.outside}
}

func methodNames() (names []string) {
	for name := range methods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readGroup reads how many input features share a scale, 0 for all, which files have as -1.
func readGroup(f *checkpoint.Fields, key string) int {
	group := f.Integer(key, 128, -1, checkpoint.MaxDim)
	if group == 0 {
		f.Fail(checkpoint.ErrMalformed, key, "is 0")
	}
	return max(group, 0)
}

// readBits reads how many bits a code has.
func readBits(f *checkpoint.Fields, key string, known ...int) int {
	bits := f.Integer(key, 4, 1, 32)
	if !slices.Contains(known, bits) {
		f.Fail(checkpoint.ErrUnsupported, key, "is %d; %s are read", bits,
			strings.Trim(fmt.Sprint(known), "[]"))
	}
	return bits
}

// refuseSet fails if a field switches something on.
func refuseSet(f *checkpoint.Fields, keys ...string) {
	on := f.Unasked()
	for _, key := range keys {
		if slices.Contains(on, key) {
			f.Fail(checkpoint.ErrUnsupported, key, "is %s", f.Excerpt(key))
		}
	}
}

// readGPTQ reads what AutoGPTQ and GPTQModel write.
func readGPTQ(f *checkpoint.Fields, q *Quantization) {
	g := layers.GPTQ{Bits: readBits(f, "bits", 4, 8), Group: readGroup(f, "group_size"),
		Symmetric: f.Flag("sym", true)}
	switch format := f.Text("checkpoint_format", f.Text("format", "gptq")); format {
	case "gptq":
	case "gptq_v2":
		g.Exact = true
	default:
		f.Fail(checkpoint.ErrUnsupported, "checkpoint_format", "is %s; gptq, gptq_v2 are read",
			checkpoint.Short(format))
	}
	f.Only("pack_dtype", "int32")
	refuseSet(f, "is_marlin_format", "rotation")
	readRules(f)
	q.outside = f.Flag("lm_head", false)
	q.ActOrder = f.Flag("desc_act", false) && !f.Flag("static_groups", false) && g.Group > 0
	g.Ordered = q.ActOrder
	q.of = func(string) layers.Format { return g }
}

// readRules reads GPTQModel's dynamic, which says by expressions how modules are quantised that
// differ from the rest. Those it leaves out ("-:") are plain, which the weights show.
func readRules(f *checkpoint.Fields) {
	rules := f.Object("dynamic")
	if rules == nil {
		return
	}
	for _, name := range rules.Keys() {
		if !strings.HasPrefix(name, "-:") {
			rules.Fail(checkpoint.ErrUnsupported, name, "is of other bits or groups; -: is read")
		}
	}
	f.Adopt(rules)
}

// readAutoRound reads what AutoRound writes of weights alone, in the layouts of GPTQ and AWQ.
// Modules of 16 bits among those of extra_config are plain, which the weights show.
func readAutoRound(f *checkpoint.Fields, q *Quantization) {
	format := f.Text("packing_format", "auto_round:auto_gptq")
	group, symmetric := readGroup(f, "group_size"), f.Flag("sym", true)
	f.Only("data_type", "int")
	if extra := f.Object("extra_config"); extra != nil {
		for _, name := range extra.Keys() {
			if m := extra.Object(name); m != nil && m.Nullable("bits", 16, 1, 32) < 16 {
				extra.Fail(checkpoint.ErrUnsupported, name, "is of other bits than the rest")
			}
		}
		f.Adopt(extra)
	}
	q.outside = true
	switch strings.TrimPrefix(format, "auto_round:") {
	case "auto_gptq", "auto_round", "gptqmodel":
		g := layers.GPTQ{Bits: readBits(f, "bits", 4, 8), Group: group, Symmetric: symmetric,
			Exact: !strings.HasSuffix(format, "auto_gptq")}
		q.of = func(string) layers.Format { return g }
	case "auto_awq":
		readBits(f, "bits", 4)
		q.of = func(string) layers.Format { return layers.AWQ{Group: group} }
	default:
		f.Fail(checkpoint.ErrUnsupported, "packing_format", "is %s; those of GPTQ and AWQ "+
			"are read",
			checkpoint.Short(format))
	}
}

// readModelOpt reads what NVIDIA's ModelOpt writes: e4m3 with one scale for each module, for each
// output feature, for each block, or for 32 input features, and NVFP4. Before 0.31 it wrote that
// one object deeper. What inputs are rounded to makes no difference: they are not rounded.
func readModelOpt(f *checkpoint.Fields, q *Quantization) {
	if inner := f.Object("quantization"); inner != nil {
		readModelOpt(inner, q)
		f.Adopt(inner)
		return
	}
	q.outside = true
	s := layers.Scaled{Float: true, Scale: ".weight_scale"}
	format := layers.Format(s)
	switch algorithm := f.Text("quant_algo", ""); strings.ToUpper(algorithm) {
	case "FP8":
	case "FP8_PER_CHANNEL_PER_TOKEN":
		s.Rows = 1
		format = s
	case "FP8_PB_WO":
		s.Rows, s.Cols = 128, 128
		format = s
	case "MXFP8":
		s.Rows, s.Cols = 1, 32
		format = s
	case "NVFP4", "W4A16_NVFP4":
		format = layers.E2M1{Group: f.Integer("group_size", 16, 1, checkpoint.MaxDim),
			Weight: ".weight", Global: ".weight_scale_2"}
	default:
		f.Fail(checkpoint.ErrUnsupported, "quant_algo", "is %s; FP8, FP8_PER_CHANNEL_PER_TOKEN, "+
			"FP8_PB_WO, MXFP8, NVFP4, W4A16_NVFP4 are read", checkpoint.Short(algorithm))
	}
	q.of = func(string) layers.Format { return format }
}

// readTorchAO reads what transformers writes of models that torchao has quantised to int8 or e4m3.
// What inputs are rounded to makes no difference: they are not rounded.
func readTorchAO(f *checkpoint.Fields, q *Quantization) {
	refuseSet(f, "include_input_output_embeddings")
	s := layers.Scaled{Scale: "._weight_scale", Code: "._weight_qdata", Rows: 1, Shaped: true}
	name := ""
	if kind := f.Object("quant_type"); kind != nil {
		if of := kind.Object("default"); of != nil {
			name = of.Text("_type", "")
		}
	}
	switch name {
	case "Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig":
		s.Asymmetric = true
	case "Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig":
		s.Float = true
	default:
		f.Fail(checkpoint.ErrUnsupported, "quant_type", "is %s; int8 and float8 of all modules "+
			"are read", checkpoint.Short(name))
	}
	q.outside = true
	q.of = except(modules(f.Texts("modules_to_not_convert")), s)
}

// readAWQ reads what AutoAWQ writes, and the names of its beginnings.
func readAWQ(f *checkpoint.Fields, q *Quantization) {
	bits, group := "bits", "group_size"
	if f.Has("w_bit") {
		bits = "w_bit"
	}
	if f.Has("q_group_size") {
		group = "q_group_size"
	}
	readBits(f, bits, 4)
	a := layers.AWQ{Group: readGroup(f, group)}
	if version := f.Text("version", "gemm"); !strings.EqualFold(version, "gemm") {
		f.Fail(checkpoint.ErrUnsupported, "version", "is %s; gemm is read",
			checkpoint.Short(version))
	}
	if !f.Flag("zero_point", true) {
		f.Fail(checkpoint.ErrUnsupported, "zero_point", "is false")
	}
	plain := modules(f.Texts("modules_to_not_convert"))
	q.of = except(plain, a)
}

// except is a layout of all modules but those that are plain.
func except(plain func(module string) bool, format layers.Format) func(string) layers.Format {
	return func(module string) layers.Format {
		if plain(module) {
			return nil
		}
		return format
	}
}

// readGGUF reads what package gguf writes: its tensors say themselves what they are.
func readGGUF(_ *checkpoint.Fields, q *Quantization) {
	q.of, q.outside = func(string) layers.Format { return layers.GGUF{} }, true
}

// readMXFP4 reads what GPT-OSS is published with.
func readMXFP4(_ *checkpoint.Fields, q *Quantization) {
	q.of = func(string) layers.Format { return layers.MXFP4{} }
}

// readFP8 reads what DeepSeek V3 and others have whose weights are e4m3: scales of blocks
// (weight_scale_inv), or one of each module (weight_scale). What inputs are rounded to, and its
// scales, make no difference: they are not rounded.
func readFP8(f *checkpoint.Fields, q *Quantization) {
	s := layers.Scaled{Float: true, Scale: ".weight_scale"}
	if block := f.Numbers("weight_block_size"); block != nil {
		s.Scale = ".weight_scale_inv"
		s.Rows, s.Cols = readBlock(f, "weight_block_size", block)
	}
	switch scheme := f.Text("activation_scheme", "dynamic"); scheme {
	case "dynamic", "static":
	default:
		f.Fail(checkpoint.ErrUnsupported, "activation_scheme", "is %s; dynamic, static are read",
			checkpoint.Short(scheme))
	}
	switch name := f.Text("fmt", "e4m3"); name {
	case "e4m3", "float8_e4m3fn": // MiniMax has torch's name
	default:
		f.Fail(checkpoint.ErrUnsupported, "fmt", "is %s; e4m3 is read", checkpoint.Short(name))
	}
	q.of = except(modules(slices.Concat(f.Texts("modules_to_not_convert"),
		f.Texts("ignored_layers"))), s)
}

// readBlock is how many output and input features share a scale.
func readBlock(f *checkpoint.Fields, key string, block []float64) (rows, cols int) {
	if len(block) != 2 || block[0] != math.Trunc(block[0]) || block[1] != math.Trunc(block[1]) ||
		max(block[0], block[1]) > checkpoint.MaxDim {
		f.Fail(checkpoint.ErrMalformed, key, "is %v, not two whole numbers", block)
		return 0, 0
	}
	return int(block[0]), int(block[1])
}

// readFBGEMM reads what Llama 3.1 405B is published with: e4m3, with a scale for each output
// feature.
func readFBGEMM(f *checkpoint.Fields, q *Quantization) {
	q.of = except(modules(f.Texts("modules_to_not_convert")), layers.Scaled{Float: true,
		Scale: ".weight_scale", Rows: 1})
}

// readBitsAndBytes reads what transformers writes of models that bitsandbytes has quantised: all
// linear modules that are not named, routers too, and the head where others are.
func readBitsAndBytes(f *checkpoint.Fields, q *Quantization) {
	q.outside = true
	names := f.Texts("llm_int8_skip_modules")
	if len(names) == 0 {
		names = []string{"lm_head", "embed_out"}
	}
	plain := modules(append(names, "embed_tokens", "embed_in"))
	if f.Flag("load_in_8bit", f.Flag("_load_in_8bit", false)) {
		q.of = except(plain, layers.Scaled{Scale: ".SCB", Rows: 1, Largest: 127,
			Order: ".weight_format"})
		return
	}
	b := layers.Blocks4{Type: f.Text("bnb_4bit_quant_type", "fp4"),
		Nested: f.Flag("bnb_4bit_use_double_quant", false)}
	switch {
	case !f.Flag("load_in_4bit", f.Flag("_load_in_4bit", false)):
		f.Fail(checkpoint.ErrMalformed, "load_in_4bit", "is false, and load_in_8bit too")
	case b.Type != "nf4" && b.Type != "fp4":
		f.Fail(checkpoint.ErrUnsupported, "bnb_4bit_quant_type", "is %s; nf4, fp4 are read",
			checkpoint.Short(b.Type))
	}
	f.Only("bnb_4bit_quant_storage", "uint8")
	q.of = except(plain, b)
}

// modules tells whether a module is one of those named, is part of one, or ends with one.
func modules(names []string) func(module string) bool {
	for i, name := range names {
		names[i] = checkpoint.LanguageModel(name)
	}
	return func(module string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return name != "" && strings.Contains("."+module+".", "."+name+".")
		})
	}
}

// Quantise has weights quantised as they are loaded, by a name that --quantization has; "" leaves
// them as they are stored, and so does the method that they are stored by.
func (c *Config) Quantise(name string) error {
	if name == "" {
		return nil
	}
	if q := c.Quantization; q != nil {
		if strings.TrimSuffix(name, "_marlin") == q.Method {
			return nil
		}
		return fmt.Errorf("quantization %q of weights that are stored as %s", name, q.Method)
	}
	scheme := layers.ByName(name)
	if scheme == nil {
		return fmt.Errorf("quantization %q of weights that are stored plainly: int8, int4, "+
			"int4_g64 and int4_g128 are made as they are loaded", name)
	}
	c.Scheme = scheme
	return nil
}
