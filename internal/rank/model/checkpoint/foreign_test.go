package checkpoint

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeign opens folders that are no model folders, as far as their config.json and their
// weights: each is named with what to do, in a line.
func TestForeign(t *testing.T) {
	const lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"
	shards := `{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"empty", nil, []string{"has no config.json: give a folder with config.json"}},
		{"weights of Git LFS", map[string]string{"config.json": "{}", weightsFile: lfs},
			[]string{"model.safetensors is a pointer of Git LFS", "(git lfs pull)"}},
		{"shard of Git LFS", map[string]string{"config.json": "{}", indexFile: shards,
			"1.safetensors": string(file(bytesA, 1)), "2.safetensors": lfs},
			[]string{"2.safetensors is a pointer of Git LFS"}},
		{"index of Git LFS", map[string]string{"config.json": "{}", indexFile: lfs},
			[]string{"model.safetensors.index.json is a pointer of Git LFS"}},
		{"config.json of Git LFS", map[string]string{"config.json": lfs},
			[]string{"config.json is a pointer of Git LFS", "(git lfs pull)"}},
		{"git-annex", map[string]string{"config.json": "{}",
			weightsFile: "/annex/objects/SHA256E-s4976698672--4d7a.safetensors\n"},
			[]string{"is a pointer of git-annex", "(git annex get)"}},
		{"Xet", map[string]string{"config.json": "{}",
			weightsFile: "# xet version 0\nfilesize = 4976698672\nhash = '4d7a'\n"},
			[]string{"is a pointer of Xet", "(git xet checkout)"}},
		{"several of GGUF", map[string]string{"m-Q4_K_M.gguf": "GGUF", "m-Q8_0.gguf": "GGUF",
			"s-00001-of-00002.gguf": "", "s-00002-of-00002.gguf": "", "mmproj-m.gguf": ""},
			[]string{"no config.json: it has 3 models in GGUF, give the path of one of them: " +
				"m-Q4_K_M.gguf, m-Q8_0.gguf, s-00001-of-00002.gguf"}},
		{"GGUF beside config.json", map[string]string{"config.json": "{}", "m.gguf": "GGUF"},
			[]string{"m.gguf: the file ends after 4 of at least 8 bytes: it was cut off"}},
		{"adapter", map[string]string{"adapter_model.safetensors": "",
			"adapter_config.json": `{"base_model_name_or_path":"meta-llama/Llama-3.2-1B"}`},
			[]string{"an adapter (adapter_config.json)", `base model, "meta-llama/Llama-3.2-1B"`}},
		{"adapter beside its base's config.json", map[string]string{"config.json": "{}",
			"adapter_model.safetensors": "", "adapter_config.json": `{}`},
			[]string{"an adapter (adapter_config.json)", "which it does not name"}},
		{"broken adapter", map[string]string{"adapter_config.json": `{`},
			[]string{"an adapter (adapter_config.json)"}},
		{"diffusers", map[string]string{"model_index.json": `{"_class_name":"FluxPipeline",
			"_diffusers_version":"0.30.0"}`},
			[]string{`pipeline of diffusers (model_index.json: "FluxPipeline")`, "run it with"}},
		{"maker's format", map[string]string{"params.json": "{}",
			"consolidated.safetensors": "", "tokenizer.model.v3": ""},
			[]string{"params.json is in the format of the model's maker", "_weights_to_hf.py"}},
		{"pickle", map[string]string{"config.json": "{}", "pytorch_model.bin": "",
			"training_args.bin": "", "full_logits.st": ""},
			[]string{"pytorch_model.bin is a pickle", "save_pretrained of transformers"}},
		{"ONNX", map[string]string{"config.json": "{}", "model.onnx": ""},
			[]string{"model.onnx is of ONNX"}},
		{"OpenVINO", map[string]string{"config.json": "{}", "openvino_model.bin": ""},
			[]string{"openvino_model.bin is of OpenVINO"}},
		{"TensorFlow", map[string]string{"config.json": "{}", "tf_model.h5": ""},
			[]string{"tf_model.h5 is of TensorFlow"}},
		{"Flax", map[string]string{"config.json": "{}", "flax_model.msgpack": ""},
			[]string{"flax_model.msgpack is of Flax"}},
		{"no weights", map[string]string{"config.json": "{}", "training_args.bin": ""},
			[]string{"no model.safetensors and no model.safetensors.index.json: give a folder"}},
		{"no index", map[string]string{"config.json": "{}",
			"model-00001-of-00002.safetensors": "", "model-00002-of-00002.safetensors": ""},
			[]string{"model-00001-of-00002.safetensors is one of several files, whose index is",
				"download model.safetensors.index.json"}},
		{"another name", map[string]string{"config.json": "{}", "weights.safetensors": ""},
			[]string{"weights.safetensors is under another name: rename it to model.safetensors"}},
		{"shard is missing", map[string]string{"config.json": "{}", indexFile: shards,
			"1.safetensors": string(file(bytesA, 1))},
			[]string{`shard "2.safetensors" is missing`, "download or copy it again"}},
		{"cut off", map[string]string{"config.json": "{}", weightsFile: string(file(bytesB, 1))},
			[]string{"model.safetensors: ", "after 64 of at least 65 bytes", "download or copy"}},
		{"cut off in its header", map[string]string{"config.json": "{}",
			weightsFile: string(file(bytesB, 1)[:20])},
			[]string{"after 20 of at least 63 bytes", "download or copy it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, data := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			wantWords(t, openFolder(t, dir), c.want)
		})
	}
}

// TestDanglingLinks: a folder whose links lead nowhere, as a copy of a Hub cache without its blobs
// and a clone with git-annex have them.
func TestDanglingLinks(t *testing.T) {
	for _, name := range []string{"config.json", weightsFile, "1.safetensors"} {
		dir := t.TempDir()
		if name == "1.safetensors" {
			index := []byte(`{"weight_map":{"a":"1.safetensors"}}`)
			if err := os.WriteFile(filepath.Join(dir, indexFile), index, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if name != configFile {
			if err := os.WriteFile(filepath.Join(dir, configFile), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../blobs/4d7a", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		err := openFolder(t, dir)
		wantWords(t, err, []string{name + " is a link to ../blobs/4d7a, which is not there",
			"git annex get"})
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error %v is not about a missing file", name, err)
		}
	}
}

// openFolder is the error of a folder's config.json, else of its weights, which must be the same
// where the files are pinned.
func openFolder(t *testing.T, dir string) error {
	t.Helper()
	f, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(f); err != nil {
		return err
	}
	if _, err = Open(f); err == nil {
		t.Fatal("the folder is opened")
	}
	p, pinErr := Pin(dir, true)
	if pinErr == nil {
		defer p.Close()
		_, pinErr = Open(p)
	}
	if pinErr == nil || pinErr.Error() != err.Error() {
		t.Errorf("pinned: %v, else: %v", pinErr, err)
	}
	return err
}

func wantWords(t *testing.T, err error, want []string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want a line with %q", err, w)
		}
	}
}

// TestQuantFiles wants the file beside config.json to say how weights are quantised where that does
// not, with the method that it is of.
func TestQuantFiles(t *testing.T) {
	for _, tc := range []struct{ config, file, quant, want string }{
		{`{"a":1}`, "quantize_config.json", `{"bits":4}`,
			`{"a":1,"quantization_config":{"bits":4,"quant_method":"gptq"}}`},
		{`{"a":1}`, "quant_config.json", `{"w_bit":4}`,
			`{"a":1,"quantization_config":{"quant_method":"awq","w_bit":4}}`},
		{`{"a":1}`, "hf_quant_config.json", `{"quantization":{"quant_algo":"FP8"}}`,
			`{"a":1,"quantization_config":{"quant_method":"modelopt","quantization":{"quant_algo":"FP8"}}}`},
		{`{"a":1}`, "quantize_config.json", `{"quant_method":"x"}`,
			`{"a":1,"quantization_config":{"quant_method":"x"}}`},
		{`{"quantization_config":{}}`, "quantize_config.json", `{"bits":4}`,
			`{"quantization_config":{}}`},
		{`{"a":1}`, "other.json", `{"bits":4}`, `{"a":1}`},
		{`{"a":1}`, "quantize_config.json", `[`, "quantize_config.json: "},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"config.json": tc.config, tc.file: tc.quant} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f, err := Dir(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadConfig(f)
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.HasPrefix(string(got), tc.want) {
			t.Errorf("%s with %s %s: %s, not %s", tc.config, tc.file, tc.quant, got, tc.want)
		}
	}
}

// TestInfinity reads a configuration with infinite numbers, as Python writes them.
func TestInfinity(t *testing.T) {
	dir := t.TempDir()
	config := `{"name":"of \"Infinity\"","time_step_limit":[0.0, Infinity]}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	folder, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ReadConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ReadFields(raw)
	if err != nil {
		t.Fatal(err)
	}
	name := f.Text("name", "")
	if low, high := f.Range("time_step_limit", 1, 2); low != 0 || !math.IsInf(high, 1) ||
		name != `of "Infinity"` || f.Err() != nil {
		t.Errorf("%s: %g to %g, %v", name, low, high, f.Err())
	}
}
