package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
)

// maxSequenceDepth bounds how deep Sequence components may nest.
const maxSequenceDepth = 8

// errUnsupported is what a parser of one component returns for a type it does not know.
var errUnsupported = errors.New("component type is not supported")

// maxGrowth bounds how many times as long the steps of a section may make a text.
const maxGrowth = 1 << 12

// growth is the product of what the steps of a section, each by itself, may make of a text's
// length, 0 before the first. Steps after which another one of their kind changes nothing are none
// of it.
type growth int

// by adds a step.
func (g *growth) by(n int) error {
	if *g = max(*g, 1) * growth(max(n, 1)); *g > maxGrowth {
		return fmt.Errorf("a text may become more than %d times as long", maxGrowth)
	}
	return nil
}

func isSpace(r rune) bool { return unicode.IsSpace(r) }

// isNull reports whether a section of the file is missing or null.
func isNull(data json.RawMessage) bool { return len(data) == 0 || string(data) == "null" }

// flatten parses a section made of components, each with a "type", into the list of its steps.
// A Sequence holds its components under the key list. The error names the section and the type.
func flatten[T any](data json.RawMessage, section, list string, depth int, g *growth,
	parse func(kind string, data json.RawMessage, g *growth) (T, error)) ([]T, error) {
	if isNull(data) {
		return nil, nil
	}
	if depth > maxSequenceDepth {
		return nil, fmt.Errorf("%s sequences nest more than %d deep", section, maxSequenceDepth)
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%s: %w", section, err)
	}
	if head.Type != "Sequence" {
		step, err := parse(head.Type, data, g)
		if errors.Is(err, errUnsupported) {
			return nil, fmt.Errorf("%s type %q is not supported", section, head.Type)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", section, head.Type, err)
		}
		return []T{step}, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", section, err)
	}
	var members []json.RawMessage
	if err := json.Unmarshal(fields[list], &members); err != nil {
		return nil, fmt.Errorf("%s Sequence has no list %q: %w", section, list, err)
	}
	var steps []T
	for _, member := range members {
		inner, err := flatten(member, section, list, depth+1, g, parse)
		if err != nil {
			return nil, err
		}
		steps = append(steps, inner...)
	}
	return steps, nil
}
