package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// overridable are the fields of config.json that Override replaces.
var overridable = []string{"max_position_embeddings", "original_max_position_embeddings",
	"partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_theta"}

// Overridable says that Override replaces a field.
func Overridable(key string) bool { return slices.Contains(overridable, key) }

// Override replaces fields of a config.json on how positions are turned and how many there are. A
// file of transformers 5 keeps the base and the scaling in rope_parameters: rope_theta and
// rope_scaling are put there, and a scaling without a base leaves the base as it is. No overrides
// leave raw as it is.
func Override(raw []byte, overrides map[string]json.RawMessage) ([]byte, error) {
	if len(overrides) == 0 {
		return raw, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return nil, fmt.Errorf("config.json: %w: not an object", checkpoint.ErrMalformed)
	}
	for key := range overrides {
		if !Overridable(key) {
			return nil, fmt.Errorf("%s is not one of %s", key, strings.Join(overridable, ", "))
		}
	}
	whole, text := fields, map[string]json.RawMessage(nil)
	if err := json.Unmarshal(fields["text_config"], &text); err == nil && text != nil {
		fields = text // of the language model, which stands beside others
	}
	var rope map[string]json.RawMessage
	if err := json.Unmarshal(fields["rope_parameters"], &rope); err == nil && rope != nil {
		if err := overrideParameters(fields, rope, overrides); err != nil {
			return nil, err
		}
	}
	if _, given := overrides["rope_parameters"]; given {
		delete(fields, "rope_scaling") // which would go first
	}
	for key, value := range overrides {
		if rope == nil || key != "rope_theta" && key != "rope_scaling" {
			fields[key] = value
		}
	}
	if text != nil {
		var err error
		if whole["text_config"], err = json.Marshal(text); err != nil {
			return nil, err
		}
	}
	return json.Marshal(whole)
}

// overrideParameters writes rope_theta and rope_scaling into rope_parameters.
func overrideParameters(fields, rope, overrides map[string]json.RawMessage) error {
	scaling, scaled := overrides["rope_scaling"]
	theta, based := overrides["rope_theta"]
	if !scaled && !based {
		return nil
	}
	for _, nested := range []string{"full_attention", "sliding_attention"} {
		if _, found := rope[nested]; found {
			return errors.New("rope_theta and rope_scaling: the model has rope_parameters for " +
				"each kind of its layers: give rope_parameters as a whole")
		}
	}
	if scaled {
		kept := rope["rope_theta"]
		clear(rope)
		if err := json.Unmarshal(scaling, &rope); err != nil {
			return errors.New("rope_scaling is not an object")
		}
		if rope == nil { // null: not scaled
			rope = map[string]json.RawMessage{}
		}
		if _, found := rope["rope_theta"]; !found && kept != nil {
			rope["rope_theta"] = kept
		}
	}
	if based {
		rope["rope_theta"] = theta
	}
	var err error
	fields["rope_parameters"], err = json.Marshal(rope)
	delete(fields, "rope_scaling")
	delete(fields, "rope_theta")
	return err
}
