package config

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ParseFile reads a YAML file of flags: a mapping from flag names to values. A list gives a flag
// several times; a mapping is passed on as JSON, as are members that are given one by one, as in
// "flag.key: value". Scalars keep their spelling: 0123 stays 0123.
func ParseFile(raw []byte) (map[string][]string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	if len(doc.Content) == 0 {
		return out, nil
	}
	top := doc.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return out, nil
	}
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: not a mapping of flags to values", top.Line)
	}
	var given givenMembers
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		name, path, member := strings.Cut(key.Value, ".")
		name = strings.ReplaceAll(name, "_", "-")
		if key.Kind != yaml.ScalarNode || name == "" {
			return nil, fmt.Errorf("line %d: a key is not the name of a flag", key.Line)
		}
		if member {
			text, err := flagText(resolved(value))
			if err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", key.Line, key.Value, err)
			}
			given.of(name).put(path, text)
			continue
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", key.Line, name)
		}
		values, err := flagValues(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", key.Line, name, err)
		}
		out[name] = values
	}
	for _, x := range given.appendTo(nil) {
		name, value, _ := strings.Cut(x, "=")
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%s is there as a whole, and by its members", name)
		}
		out[name] = []string{value}
	}
	return out, nil
}

func flagValues(n *yaml.Node) ([]string, error) {
	n = resolved(n)
	if n.Kind != yaml.SequenceNode {
		s, err := flagText(n)
		return []string{s}, err
	}
	values := make([]string, 0, len(n.Content))
	for _, c := range n.Content {
		s, err := flagText(resolved(c))
		if err != nil {
			return nil, err
		}
		values = append(values, s)
	}
	return values, nil
}

func flagText(n *yaml.Node) (string, error) {
	if n.Kind == yaml.ScalarNode {
		if n.Tag == "!!null" {
			return "", fmt.Errorf("has no value")
		}
		return n.Value, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return "", err
	}
	raw, err := json.Marshal(v)
	return string(raw), err
}

func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
