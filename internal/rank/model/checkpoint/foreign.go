package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const configFile = "config.json"

// foreign is what people take for a model folder, by files that show it: first what the folder is
// as a whole, then in which form its weights are. say tells what it is and what to do.
var foreign = []struct {
	patterns []string
	say      func(f Folder, file string) string
}{
	{[]string{"adapter_config.json"}, adapter},
	{[]string{"model_index.json"}, diffusers},
	{[]string{"params.json"}, always("is in the format of the model's maker, not in that of " +
		"transformers: take its folder or repository with config.json and model.safetensors, or " +
		"write it with the convert_…_weights_to_hf.py of transformers")},
	{[]string{"*.gguf"}, severalGGUF},
	{[]string{"*.ggml"}, always("is of llama.cpp before GGUF, and is not read: convert the model " +
		"again")},
	{[]string{"*.onnx"}, always("is of ONNX, and is not read: take the model that it was made " +
		"from, in safetensors")},
	{[]string{"openvino_model*"}, always("is of OpenVINO, and is not read: take the model that " +
		"it was made from, in safetensors")},
	{[]string{"tf_model*.h5", "*.h5", "saved_model.pb", "*.ckpt.index"}, always("is of " +
		"TensorFlow, and is not read: take the same model in safetensors")},
	{[]string{"flax_model*.msgpack"}, always("is of Flax, and is not read: take the same model " +
		"in safetensors")},
	{[]string{"pytorch_model*.bin", "consolidated*.pth", "model*.bin", "*.pt", "*.pth", "*.ckpt"},
		always("is a pickle, which may contain programs, and is not read: save_pretrained of " +
			"transformers writes its model in safetensors")},
	{[]string{"model-?????-of-?????" + weightSuffix}, always("is one of several files, whose " +
		"index is missing: download " + indexFile + " too")},
	{[]string{"*" + weightSuffix}, always("is under another name: rename it to " + weightsFile +
		" if it is all of the weights")},
}

// describe says what a folder is that lacks files of a model, and what to do.
func describe(f Folder) string {
	names := f.Names()
	for _, kind := range foreign {
		for _, pattern := range kind.patterns {
			for _, name := range names {
				if ok, _ := path.Match(pattern, name); ok {
					return kind.say(f, name)
				}
			}
		}
	}
	return "give a folder with config.json, tokenizer.json and the weights in safetensors"
}

// always says the same of every file.
func always(text string) func(Folder, string) string {
	return func(_ Folder, file string) string { return file + " " + text }
}

// severalGGUF lists the models in GGUF, of which a folder of one kind has one.
func severalGGUF(f Folder, file string) string {
	models := ggufModels(f.Names())
	if len(models) == 0 {
		return file + " sees or hears for a language model, which is not there"
	}
	return fmt.Sprintf("it has %d models in GGUF, give the path of one of them: %s", len(models),
		strings.Join(models, ", "))
}

// adapter names the model that an adapter belongs to.
func adapter(f Folder, file string) string {
	base := textOf(f, file, "base_model_name_or_path")
	if base == "" {
		base = "which it does not name"
	} else {
		base = Short(base)
	}
	return fmt.Sprintf("it is an adapter (%s), which is not loaded: serve its base model, %s, or "+
		"the folder that merge_and_unload of peft makes of both", file, base)
}

// diffusers names the pipeline of a repository for pictures.
func diffusers(f Folder, file string) string {
	class := textOf(f, file, "_class_name")
	return fmt.Sprintf("it is a pipeline of diffusers (%s: %s), not a language model: run it with "+
		"diffusers", file, Short(class))
}

// textOf is a string of a JSON file, "" when there is none.
func textOf(f Folder, file, key string) string {
	raw, err := f.ReadFile(file)
	if err != nil {
		return ""
	}
	var all map[string]json.RawMessage
	var text string
	if json.Unmarshal(raw, &all) != nil || json.Unmarshal(all[key], &text) != nil {
		return ""
	}
	return text
}

// missingError is about files that a model folder lacks.
type missingError string

func (e missingError) Error() string { return string(e) }

// Unwrap makes it one of fs.ErrNotExist.
func (e missingError) Unwrap() error { return fs.ErrNotExist }

// missing is the error about a folder that has none of the named files.
func missing(f Folder, names ...string) error {
	for _, name := range names {
		if to := dangling(f, name); to != "" {
			return missingError(to)
		}
	}
	return missingError(fmt.Sprintf("%s has no %s: %s", f.Location(),
		strings.Join(names, " and no "), describe(f)))
}

// missingShard is the error about a file that the index names.
func missingShard(f Folder, shard string) error {
	if to := dangling(f, shard); to != "" {
		return missingError(to)
	}
	return fmt.Errorf("%w: shard %q is missing: %s names it, download or copy it again",
		ErrMalformed, shard, indexFile)
}

// dangling says what to do about a name that is a link to nowhere; "" if it is none.
func dangling(f Folder, name string) string {
	link := filepath.Join(f.Location(), name)
	to, err := os.Readlink(link)
	if err != nil || exists(f, name) {
		return ""
	}
	return fmt.Sprintf("%s is a link to %s, which is not there: download it again, or fetch it "+
		"(git annex get) where git-annex made the link", link, to)
}

// modelOptFile is that of quantFiles that ModelOpt writes.
const modelOptFile = "hf_quant_config.json"

// quantFiles have how weights are quantised where config.json does not say: AutoGPTQ's first
// releases, AWQ's, and ModelOpt's before 0.31.
var quantFiles = [...]string{"quantize_config.json", "quant_config.json", modelOptFile}

// ReadConfig returns the content of config.json. Where that does not say how weights are quantised
// and a file beside it does, it is its quantization_config. The error about a folder without
// config.json says what the folder may be.
func ReadConfig(f Folder) ([]byte, error) {
	raw, err := f.ReadFile(configFile)
	if notExist(err) {
		return nil, missing(f, configFile)
	}
	if err != nil {
		return nil, err
	}
	raw = tagInfinity(raw)
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil || all == nil || len(all["quantization_config"]) > 0 ||
		len(all["compression_config"]) > 0 {
		return raw, nil // what is wrong with it is said where it is read
	}
	for _, name := range quantFiles {
		quant, err := f.ReadFile(name)
		if notExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		q, err := ReadFields(quant)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !q.Set("quant_method") {
			method := "gptq"
			switch {
			case name == modelOptFile:
				method = "modelopt"
			case q.Set("w_bit") || q.Set("zero_point"):
				method = "awq"
			}
			q.raw["quant_method"], _ = json.Marshal(method)
		}
		if all["quantization_config"], err = json.Marshal(q.raw); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return json.Marshal(all)
	}
	return raw, nil
}

// tagInfinity is raw with each Infinity, which Python writes and JSON lacks, as transformers 5
// writes it (see Fields.Range).
func tagInfinity(raw []byte) []byte {
	const word = "Infinity"
	if !bytes.Contains(raw, []byte(word)) {
		return raw
	}
	var out []byte
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\' && i+1 < len(raw):
			out = append(out, c)
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && bytes.HasPrefix(raw[i:], []byte(word)):
			out = append(out, `{"__float__":"Infinity"}`...)
			i += len(word) - 1
			continue
		}
		out = append(out, raw[i])
	}
	return out
}

// pointers are how files begin that stand for a file elsewhere, and what fetches it.
var pointers = []struct{ prefix, of, fetch string }{
	{"version https://git-lfs.github.com/spec/", "Git LFS", "git lfs pull"},
	{"version https://hawser.github.com/spec/", "Git LFS", "git lfs pull"},
	{"# xet version", "Xet", "git xet checkout"},
	{"/annex/objects/", "git-annex", "git annex get"},
}

// mostPointer bounds the size of a pointer.
const mostPointer = 4 << 10

// checkPointer returns an error if data, of a file of a name, stands for another file.
func checkPointer(name string, data []byte) error {
	if len(data) > mostPointer {
		return nil
	}
	for _, p := range pointers {
		if bytes.HasPrefix(data, []byte(p.prefix)) {
			return fmt.Errorf("%w: %s is a pointer of %s, not the file itself: fetch it (%s), or "+
				"download the model again", ErrMalformed, name, p.of, p.fetch)
		}
	}
	return nil
}
