package config

import (
	"encoding/json"
	"strings"
)

// decodeStrict reads the JSON object of a flag into v, which has all keys that it may have.
func decodeStrict(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
