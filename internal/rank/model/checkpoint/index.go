package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

const (
	weightsFile  = "model.safetensors"
	indexFile    = "model.safetensors.index.json"
	weightSuffix = ".safetensors"
)

// indexLimits: the nesting is that of the metadata, which is skipped.
var indexLimits = jsonx.Limits{Depth: 32, Members: maxTensors, Duplicates: true}

// findShards names the weight files of f in a fixed order and, where there is an index, which file
// each tensor is in. A single file goes before an index, as in transformers.
func findShards(f Folder) (shards []string, index map[string]string, err error) {
	if exists(f, weightsFile) {
		return []string{weightsFile}, nil, nil
	}
	if !exists(f, indexFile) {
		return nil, nil, missing(f, weightsFile, indexFile)
	}
	raw, err := f.ReadFile(indexFile)
	if err != nil {
		return nil, nil, fmt.Errorf("weight index: %w", err)
	}
	index, err = parseIndex(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrMalformed, indexFile, err)
	}
	shards = slices.Compact(slices.Sorted(maps.Values(index)))
	return shards, index, nil
}

// parseIndex reads the weight map of model.safetensors.index.json.
func parseIndex(raw []byte) (map[string]string, error) {
	var index map[string]string
	err := jsonx.Read(raw, indexLimits, func(r *jsonx.Reader) error {
		return r.Object(func(key string) (err error) {
			if key != "weight_map" {
				return r.Skip()
			}
			if index != nil {
				return errors.New("weight_map occurs twice")
			}
			index, err = readWeightMap(r)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if len(index) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return index, nil
}

// readWeightMap reads which file each tensor is in.
func readWeightMap(r *jsonx.Reader) (map[string]string, error) {
	index := map[string]string{}
	err := r.Object(func(name string) error {
		shard, err := r.Text()
		if err != nil {
			return fmt.Errorf("tensor %s: %w", Short(name), err)
		}
		if _, ok := index[name]; ok {
			return fmt.Errorf("tensor %s occurs twice", Short(name))
		}
		if !plainName(shard) {
			return fmt.Errorf("tensor %s: shard name %s is not a plain file name", Short(name),
				Short(shard))
		}
		if !strings.HasSuffix(shard, weightSuffix) {
			return fmt.Errorf("tensor %s: shard %s is not a %s file", Short(name), Short(shard),
				weightSuffix)
		}
		index[name] = shard
		return nil
	})
	return index, err
}
