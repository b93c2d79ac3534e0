package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	singleWeights = "model.safetensors"
	weightIndex   = "model.safetensors.index.json"
	maxIndex      = 256 << 20
	// toolTemplate is the chat template of conversations with tools.
	toolTemplate = "additional_chat_templates/tool_use.jinja"
)

// checkNames refuses a repository that lists a file outside itself.
func checkNames(names []string) error {
	for _, name := range names {
		for _, part := range strings.Split(name, "/") {
			if part == "" || part == "." || part == ".." || len(part) > 255 ||
				strings.ContainsAny(part, "\\\x00") {
				return fmt.Errorf("the repository lists the file %.300q, which is not a safe name",
					name)
			}
		}
	}
	return nil
}

// selectFiles picks what an engine needs besides the shards that a weight index names:
// configuration, tokenizer, chat template, and either the single weight file or the index. Only the
// repository's top folder counts, and the modules that sentence-transformers has follow the model.
func selectFiles(names []string) ([]string, error) {
	var picked []string
	sentence := slices.Contains(names, "modules.json")
	for _, name := range names {
		if !strings.Contains(name, "/") && needed(name) || sentence && ofModule(name) ||
			name == toolTemplate {
			picked = append(picked, name)
		}
	}
	switch {
	case slices.Contains(names, singleWeights):
		picked = slices.DeleteFunc(picked, func(name string) bool { return name == weightIndex })
		picked = append(picked, singleWeights)
	case !slices.Contains(names, weightIndex) && slices.Contains(names, "adapter_config.json"):
		return nil, errors.New("the repository is an adapter (adapter_config.json), which is not " +
			"loaded: give its base model, or merge the two (PEFT's merge_and_unload)")
	case !slices.Contains(names, weightIndex):
		return nil, fmt.Errorf("the repository has no weights in safetensors format (%s or %s)%s",
			singleWeights, weightIndex, otherWeights(names))
	}
	slices.Sort(picked)
	return slices.Compact(picked), nil
}

// needed reports whether a file of the top folder other than weights is wanted.
func needed(name string) bool {
	if strings.HasSuffix(name, ".index.json") {
		return name == weightIndex
	}
	for _, suffix := range []string{".json", ".jinja", ".model", ".tiktoken"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return name == "merges.txt" || name == "vocab.txt" ||
		strings.HasPrefix(name, "tokenizer.model.")
}

// ofModule reports whether a file is one of a module that follows the model, in a folder such as
// 1_Pooling: its configuration or its weights.
func ofModule(name string) bool {
	folder, file, _ := strings.Cut(name, "/")
	number, kind, _ := strings.Cut(folder, "_")
	n, err := strconv.Atoi(number)
	return err == nil && n > 0 && kind != "" && (file == "config.json" || file == singleWeights)
}

// otherWeights mentions weights in formats that are not read.
func otherWeights(names []string) string {
	for _, name := range names {
		for _, suffix := range []string{".bin", ".pt", ".pth", ".gguf", ".onnx", ".safetensors"} {
			if strings.HasSuffix(name, suffix) {
				return ", but " + name
			}
		}
	}
	return ""
}

// shardsOf lists the weight files that the index at path names.
func shardsOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxIndex {
		return nil, fmt.Errorf("%s has %d bytes, above the limit of %d", weightIndex, info.Size(),
			maxIndex)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", weightIndex, err)
	}
	var shards []string
	for _, shard := range index.WeightMap {
		if !slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	if len(shards) == 0 {
		return nil, fmt.Errorf("%s names no file", weightIndex)
	}
	slices.Sort(shards)
	for _, shard := range shards {
		if strings.Contains(shard, "/") || !strings.HasSuffix(shard, ".safetensors") {
			return nil, fmt.Errorf("%s names the file %.300q, which is not one of the "+
				"repository's top folder", weightIndex, shard)
		}
	}
	return shards, checkNames(shards)
}

// missingFiles lists what a snapshot lacks of what every model needs: config.json and all weights.
// Those of a list that is not nil are what is needed instead.
func missingFiles(dir string, needed []string) ([]string, error) {
	var missing []string
	lacks := func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err != nil || !info.Mode().IsRegular()
	}
	if needed != nil {
		return slices.DeleteFunc(slices.Clone(needed), func(name string) bool {
			return !lacks(name)
		}), nil
	}
	if lacks("config.json") {
		missing = append(missing, "config.json")
	}
	if !lacks(singleWeights) {
		return missing, nil
	}
	shards, err := shardsOf(filepath.Join(dir, weightIndex))
	if errors.Is(err, fs.ErrNotExist) {
		return append(missing, singleWeights+" or "+weightIndex), nil
	}
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if lacks(shard) {
			missing = append(missing, shard)
		}
	}
	return missing, nil
}
