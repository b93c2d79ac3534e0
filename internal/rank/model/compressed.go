package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// configGroup is a group of compressed-tensors' config_groups: modules, and their layout.
type configGroup struct {
	// linear says that it is of all linear layers that no group names.
	linear bool
	named  func(module string) bool
	format layers.Format
}

// readCompressedTensors reads what llm-compressor writes. What inputs and outputs of modules are
// rounded to makes no difference: they are not rounded.
func readCompressedTensors(f *checkpoint.Fields, q *Quantization) {
	refuseSet(f, "transform_config")
	q.outside = true // of the head, where it is not ignored
	if s := f.Object("sparsity_config"); s != nil && s.Len() > 0 {
		s.Only("format", "dense")
		f.Adopt(s)
	}
	if s := f.Object("kv_cache_scheme"); s != nil { // a cache in the model's type is closer
		if bits := s.Integer("num_bits", 8, 0, 64); bits != 8 {
			s.Fail(checkpoint.ErrUnsupported, "num_bits", "is %d; 8 is known", bits)
		}
		if kind := s.Text("type", "int"); kind != "int" && kind != "float" {
			s.Fail(checkpoint.ErrUnsupported, "type", "is %s; int, float are known",
				checkpoint.Short(kind))
		}
		f.Adopt(s)
	}
	ignored := readTargets(f, "ignore", f.Texts("ignore"))
	format := f.Text("format", "dense")
	groups := f.Object("config_groups")
	if groups == nil || groups.Len() == 0 {
		f.Fail(checkpoint.ErrMalformed, "config_groups", "are missing")
		return
	}
	var list []configGroup
	for _, name := range groups.Keys() {
		if g := groups.Object(name); g != nil {
			list = append(list, readConfigGroup(g, format, q))
			groups.Adopt(g)
		}
	}
	f.Adopt(groups)
	if f.Err() != nil {
		return
	}
	q.of = func(module string) layers.Format {
		if ignored(module) {
			return nil
		}
		var rest layers.Format
		for _, g := range list {
			if g.named(module) {
				return g.format
			}
			if g.linear && rest == nil {
				rest = g.format
			}
		}
		return rest
	}
}

func readConfigGroup(f *checkpoint.Fields, format string, q *Quantization) (g configGroup) {
	var names []string
	for _, target := range f.Texts("targets") {
		switch {
		case target == "Linear":
			g.linear = true
		case target != "" && unicode.IsUpper(rune(target[0])):
			f.Fail(checkpoint.ErrUnsupported, "targets", "has %s; Linear and names of modules are "+
				"read", checkpoint.Short(target))
		default:
			names = append(names, target)
		}
	}
	g.named = readTargets(f, "targets", names)
	w := f.Object("weights")
	if w == nil {
		return g
	}
	g.format = readWeightsArgs(w, f.Text("format", format), q)
	f.Adopt(w)
	return g
}

// readWeightsArgs reads how weights of a format are quantised.
func readWeightsArgs(f *checkpoint.Fields, format string, q *Quantization) layers.Format {
	bits, kind := f.Integer("num_bits", 8, 1, 64), f.Text("type", "int")
	symmetric := f.Flag("symmetric", true)
	strategy, rows, cols := readStrategy(f)
	if f.Flag("dynamic", false) {
		f.Fail(checkpoint.ErrUnsupported, "dynamic", "is true")
	}
	order, ordered := "", false
	if f.Excerpt("actorder") != "false" {
		order = f.Text("actorder", "")
	}
	switch order {
	case "", "weight", "static":
	case "group":
		ordered = format == "pack-quantized" && cols > 0
		q.ActOrder = q.ActOrder || ordered
	default:
		f.Fail(checkpoint.ErrUnsupported, "actorder", "is %s; weight, static, group are read",
			checkpoint.Short(order))
	}
	number := fmt.Sprintf("%s of %d bits in format %s", kind, bits, format)
	if (strategy == "tensor_group") != (format == "nvfp4-pack-quantized") {
		f.Fail(checkpoint.ErrUnsupported, "strategy", "is %s in format %s", strategy, format)
	}
	switch number {
	case "int of 4 bits in format pack-quantized", "int of 8 bits in format pack-quantized":
		if rows == 0 && !symmetric || rows > 1 {
			f.Fail(checkpoint.ErrUnsupported, "strategy", "is %s of weights that are packed",
				f.Excerpt("strategy"))
		}
		return layers.Packed{Bits: bits, Group: cols, Tensor: rows == 0, Symmetric: symmetric,
			Ordered: ordered}
	case "float of 8 bits in format float-quantized", "float of 8 bits in format naive-quantized",
		"float of 8 bits in format mxfp8-quantized":
		if symmetric {
			return layers.Scaled{Float: true, Scale: ".weight_scale", Rows: rows, Cols: cols}
		}
		f.Fail(checkpoint.ErrUnsupported, "symmetric", "is false of floats")
	case "float of 4 bits in format nvfp4-pack-quantized",
		"float of 4 bits in format mxfp4-pack-quantized":
		e := layers.E2M1{Group: cols, Weight: ".weight_packed"}
		if strategy == "tensor_group" {
			e.Global, e.Divided = ".weight_global_scale", true
		}
		if symmetric && cols > 0 && rows == 1 {
			return e
		}
		f.Fail(checkpoint.ErrUnsupported, "strategy", "is %s of floats of 4 bits", strategy)
	default:
		if bytes := format == "int-quantized" || format == "naive-quantized"; bytes &&
			kind == "int" && bits <= 8 {
			return layers.Scaled{Scale: ".weight_scale", Rows: rows, Cols: cols,
				Asymmetric: !symmetric}
		}
		f.Fail(checkpoint.ErrUnsupported, "type", "is %s; int of 4 and 8 bits in pack-quantized, "+
			"int in int-quantized, float of 8 in float-quantized and mxfp8-quantized and of 4 in "+
			"nvfp4-pack-quantized and mxfp4-pack-quantized are read", number)
	}
	return nil
}

// readStrategy is by what weights share a scale, and how many output and input features do, 0 for
// all.
func readStrategy(f *checkpoint.Fields) (strategy string, rows, cols int) {
	group := f.Nullable("group_size", -1, -1, checkpoint.MaxDim)
	strategy = "tensor"
	if group > 0 {
		strategy = "group"
	} else if group < 0 && f.Set("group_size") {
		strategy = "channel"
	}
	switch strategy = f.Text("strategy", strategy); strategy {
	case "tensor":
	case "channel":
		rows = 1
	case "group", "tensor_group":
		if group < 1 {
			f.Fail(checkpoint.ErrMalformed, "group_size", "is %d of the strategy %s", group,
				strategy)
		}
		rows, cols = 1, max(group, 0)
	case "block":
		if block := f.Numbers("block_structure"); block != nil {
			rows, cols = readBlock(f, "block_structure", block)
		} else {
			f.Fail(checkpoint.ErrMalformed, "block_structure", "is missing")
		}
	default:
		f.Fail(checkpoint.ErrUnsupported, "strategy", "is %s; tensor, channel, group, "+
			"tensor_group, block are read", checkpoint.Short(strategy))
	}
	return strategy, rows, cols
}

// readTargets tells whether a module has one of the names, or begins as one of the regular
// expressions says that have "re:" before them.
func readTargets(f *checkpoint.Fields, key string, list []string) func(module string) bool {
	names := map[string]bool{}
	var patterns []*regexp.Regexp
	for _, name := range list {
		pattern, ok := strings.CutPrefix(name, "re:")
		if !ok {
			names[checkpoint.LanguageModel(name)] = true
			continue
		}
		re, err := regexp.Compile("^(?:" + pattern + ")")
		if err != nil {
			f.Fail(checkpoint.ErrUnsupported, key, "has %s, which is no regular expression that "+
				"is read", checkpoint.Short(name))
			continue
		}
		patterns = append(patterns, re)
	}
	return func(module string) bool {
		if names[module] {
			return true
		}
		return slices.ContainsFunc(patterns, func(re *regexp.Regexp) bool {
			return slices.ContainsFunc(stored(module), re.MatchString)
		})
	}
}

// stored are the names that a module has in checkpoints: by itself, and in those of
// [checkpoint.LanguageModel].
func stored(module string) []string {
	inner, found := strings.CutPrefix(module, "model.")
	if !found {
		return []string{module, "language_model." + module}
	}
	return []string{module, "language_model." + module, "model.language_model." + inner}
}
