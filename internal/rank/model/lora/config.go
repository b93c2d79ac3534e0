// Package lora reads adapters as PEFT stores them: a folder of adapter_config.json and
// adapter_model.safetensors. For each module that it adapts, of in input and out output features,
// an adapter has two matrices, A of [rank][in] and B of [out][rank]: the module's output is
// W·x + scale·B·(A·x).
package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// ConfigFile and WeightsFile are the files of an adapter's folder.
const (
	ConfigFile  = "adapter_config.json"
	WeightsFile = "adapter_model.safetensors"
)

// maxRank bounds the rank that a configuration may ask for; --max-lora-rank is below.
const maxRank = 1 << 16

// settings are what adapter_config.json says of the numbers.
type settings struct {
	rank          int
	alpha         float64
	rooted        bool // scale is alpha/√rank (rsLoRA), not alpha/rank
	ranks, alphas []pattern
}

// pattern is a number for the modules whose name, or the end of it, matches.
type pattern struct {
	match *regexp.Regexp
	value float64
}

// refusals are fields of PEFT's configuration that change what an adapter computes beyond A and B,
// and what each asks for.
var refusals = []struct{ key, why string }{
	{"modules_to_save", "modules of the model are replaced as a whole, not adapted"},
	{"use_dora", "magnitudes of DoRA are not computed"},
	{"lora_bias", "B has no bias here"},
	{"use_qalora", "QA-LoRA pools its inputs"},
	{"use_bdlora", "BD-LoRA's matrices are of blocks"},
	{"alora_invocation_tokens", "an activated adapter begins in the midst of a prompt"},
	{"layer_replication", "layers are not computed twice"},
	{"trainable_token_indices", "embeddings are not adapted"},
	{"target_parameters", "parameters that are no module's weight, as those of stacked experts, " +
		"are not adapted"},
	{"arrow_config", "adapters are not routed between"},
	{"kasa_config", "KaSA has a diagonal between A and B"},
	{"velora_config", "VeLoRA has projections of its own"},
	{"monteclora_config", "MonteCLoRA samples its weights"},
}

// rebased are ways to begin a training in which the model's own weights were changed, too.
var rebased = []string{"pissa", "olora", "corda", "loftq", "lora_ga"}

// readConfig reads adapter_config.json.
func readConfig(raw []byte) (settings, error) {
	f, err := checkpoint.ReadFields(raw)
	if err != nil {
		return settings{}, err
	}
	f.Only("peft_type", "LORA")
	for _, r := range refusals {
		if f.Set(r.key) && asks(field(raw, r.key)) {
			f.Fail(checkpoint.ErrUnsupported, r.key, "is %s: %s",
				checkpoint.Short(string(field(raw, r.key))), r.why)
		}
	}
	f.Only("bias", "none")
	if way := strings.Trim(string(field(raw, "init_lora_weights")), `"`); way != "" {
		for _, name := range rebased {
			if strings.HasPrefix(strings.ToLower(way), name) {
				f.Fail(checkpoint.ErrUnsupported, "init_lora_weights",
					"is %s: the adapter is for other weights than the model's; save it "+
						"converted to a plain one", checkpoint.Short(way))
			}
		}
	}
	s := settings{rank: f.Integer("r", 8, 1, maxRank), alpha: f.Number("lora_alpha", 8,
		-math.MaxFloat64), rooted: f.Flag("use_rslora", false)}
	if math.IsInf(s.alpha, 0) || float64(float32(s.alpha)) != float64(float32(s.alpha)) {
		f.Fail(checkpoint.ErrMalformed, "lora_alpha", "is %v", s.alpha)
	}
	if err := f.Err(); err != nil {
		return s, err
	}
	if s.ranks, err = patterns(raw, "rank_pattern"); err != nil {
		return s, err
	}
	s.alphas, err = patterns(raw, "alpha_pattern")
	return s, err
}

// field is the value of a key of an object that ReadFields has read, nil without one.
func field(raw []byte, key string) json.RawMessage {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(raw, &all) // as ReadFields has
	return all[key]
}

// asks says whether a value asks for something: it is not null, false, 0 or empty.
func asks(v json.RawMessage) bool {
	switch string(bytes.TrimSpace(v)) {
	case "null", "false", "0", `""`, "[]", "{}":
		return false
	}
	return true
}

// patterns reads an object of numbers by pattern, in its order: the first that matches counts.
func patterns(raw []byte, key string) (list []pattern, err error) {
	value := field(raw, key)
	if len(value) == 0 || string(value) == "null" {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s %s", checkpoint.ErrMalformed, key, fmt.Sprintf(format, args...))
	}
	d := json.NewDecoder(bytes.NewReader(value))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, bad("is %s where an object is expected", checkpoint.Short(string(value)))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, bad("is malformed: %v", err)
		}
		text, _ := name.(string)
		var number float64
		if err := d.Decode(&number); err != nil {
			return nil, bad("has no number for %q", text)
		}
		text = checkpoint.LanguageModel(strings.ReplaceAll(text, `language_model\.`, ""))
		// PEFT lets a pattern match a whole name, or what follows a dot in it.
		match, err := regexp.Compile(`^(?:.*\.)?(?:` + text + `)$`)
		if err != nil {
			return nil, bad("has the pattern %q, which is not read: %v", text, err)
		}
		list = append(list, pattern{match, number})
	}
	return list, nil
}

// of is the number of the first pattern that a module's name matches, else another one.
func of(list []pattern, module string, other float64) float64 {
	for _, p := range list {
		if p.match.MatchString(module) {
			return p.value
		}
	}
	return other
}

// scale is what B·(A·x) of a module of a rank is multiplied by.
func (s *settings) scale(module string, rank int) (float32, error) {
	if want := of(s.ranks, module, float64(s.rank)); want != float64(rank) {
		return 0, fmt.Errorf("module %s has rank %d in %s, but %s says %v", module, rank,
			WeightsFile, ConfigFile, want)
	}
	by := float64(rank)
	if s.rooted {
		by = math.Sqrt(by)
	}
	scale := float32(of(s.alphas, module, s.alpha) / by)
	if math.IsInf(float64(scale), 0) || scale != scale {
		return 0, errors.New("the scale of module " + module + " is not finite")
	}
	return scale, nil
}
