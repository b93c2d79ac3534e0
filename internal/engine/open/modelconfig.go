package open

import (
	"encoding/json"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// readModel reads config.json and what follows from it.
func (r *resolver) readModel() error {
	raw, err := checkpoint.ReadConfig(r.folder)
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	if err := r.readOverrides(); err != nil {
		return err
	}
	if raw, err = model.Override(raw, r.overrides); err != nil {
		return usage("--hf-overrides: %w", err)
	}
	if r.Model, err = model.ReadConfig(raw); err != nil {
		if len(r.overrides) > 0 {
			return fmt.Errorf("model %q with --hf-overrides: %w", r.Info.Root, err)
		}
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	if whole := r.Model.Around; whole != "" {
		r.log.Info("the language model is served, without encoders", "model_type", whole)
	}
	if q := r.Config.Model.Quantization; q != "" && checkpoint.HasGGUF(r.folder) {
		return usage("--quantization %s: a file of GGUF says itself how each tensor is "+
			"quantised: leave the flag out", q)
	}
	if err := r.Model.Quantise(r.Config.Model.Quantization); err != nil {
		return usage("--quantization: %w", err)
	}
	if r.Model.Quantization != nil {
		r.Config.Model.Quantization = "" // it named what the weights are stored as
	}
	if _, err := model.Architecture(r.Model); err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	if r.dtype, err = chooseDType(r.Config.Model.DType, r.Model.DType); err != nil {
		return usage("--dtype: %w", err)
	}
	r.Info.DType = r.dtype.String()
	if err := r.readCacheDType(); err != nil {
		return err
	}
	r.Info.VocabSize, r.Info.Encoder = r.Model.VocabSize, r.Model.Encoder
	longest := maxContext(r.Model)
	if r.Null != nil { // no position is computed
		longest = max(longest, r.Config.Model.MaxModelLen)
	} else if longest, err = r.maxSelected(longest); err != nil {
		return err
	}
	if r.Config.Speculative.Method != "" && r.Model.Pools() {
		return usage("--speculative-config: %q generates nothing", r.Info.Root)
	}
	r.Info.MaxModelLen, err = chooseMaxModelLen(r.Config.Model.MaxModelLen, longest)
	r.Model.Serve(r.Info.MaxModelLen)
	if n := r.Model.Chunk(); err == nil && n > 0 && r.OnGPUs() {
		return usage("--max-model-len %d: %s attends in chunks of %d positions, which GPUs do not "+
			"compute: they serve as many at most", r.Info.MaxModelLen, r.Model.Architecture, n)
	}
	return err
}

// readOverrides divides --hf-overrides into what is said of config.json, which every rank reads,
// and what is said of pooling, which readPooling does.
func (r *resolver) readOverrides() error {
	text := r.Config.Model.HFOverrides
	if text == "" {
		return nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return usage("--hf-overrides %q is not a JSON object", text)
	}
	r.overrides, r.poolOverrides = map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for key, value := range all {
		if model.Overridable(key) {
			r.overrides[key] = value
		} else {
			r.poolOverrides[key] = value
		}
	}
	return nil
}

// chooseDType is the type that is asked for; for auto it is the checkpoint's, but that float32
// checkpoints run in the platform's 16-bit type, as in vLLM.
func chooseDType(asked, own string) (compute.DType, error) {
	if asked != "auto" {
		return compute.ParseDType(asked)
	}
	if own == "" || own == "float32" {
		own = "bfloat16"
	}
	return compute.ParseDType(own)
}

// readCacheDType reads --kv-cache-dtype.
func (r *resolver) readCacheDType() (err error) {
	asked := r.Config.Cache.DType
	if r.cacheDType, err = compute.ParseCacheDType(asked, r.dtype); err != nil {
		return err
	}
	r.Info.CacheDType = asked
	switch {
	case r.cacheDType == r.dtype:
		r.Info.CacheDType = r.Info.DType
	case r.Model.Encoder:
		return usage("--kv-cache-dtype %s: model %q is an encoder, which has no KV cache", asked,
			r.Info.Root)
	}
	return nil
}

// chooseMaxModelLen is the length that is asked for, or the longest when that is 0.
func chooseMaxModelLen(asked, longest int) (int, error) {
	if asked == 0 {
		return longest, nil
	}
	if asked > longest {
		return 0, usage("--max-model-len %d is more than the %d positions the model has",
			asked, longest)
	}
	return asked, nil
}

// maxSelected is the longest sequence, of so many positions, of which attention selects all.
func (r *resolver) maxSelected(longest int) (int, error) {
	n, asked := r.Model.Selected, r.Config.Model.MaxModelLen
	if n == 0 || n >= longest {
		return longest, nil
	}
	if asked > n {
		return 0, usage("--max-model-len %d: %s selects %d positions of longer contexts, which is "+
			"not computed: it serves as many at most", asked, r.Model.Architecture, n)
	}
	if asked == 0 {
		r.log.Warn("contexts are shorter than the model's: what attention selects of longer ones "+
			"is not computed", "max_model_len", n, "positions", longest)
	}
	return n, nil
}

// maxContext is the longest sequence the model's positions allow: scaled rotary embeddings reach
// further than the positions it was first trained on (as vLLM's _get_and_verify_max_len). Gemma 3
// says how many there are when it has scaled them.
func maxContext(c *model.Config) int {
	switch {
	case c.Rope.Type == "linear" && c.ModelType != "gemma3_text":
		return int(float64(c.MaxPositions) * c.Rope.Factor)
	case c.Rope.Type == "yarn":
		return int(float64(c.Rope.OriginalMaxPositions) * c.Rope.Factor)
	}
	return c.MaxPositions
}
