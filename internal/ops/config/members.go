package config

import (
	"encoding/json"
	"strings"
)

// givenMembers are the values of flags that are given member by member, as vLLM has it:
// --name.key.of VALUE, and --name.key+ a,b for a list. They come after all other flags.
type givenMembers []struct {
	flag    string
	members members
}

type members map[string]any

// of are the members given of a flag.
func (o *givenMembers) of(flag string) members {
	for _, x := range *o {
		if x.flag == flag {
			return x.members
		}
	}
	m := members{}
	*o = append(*o, struct {
		flag    string
		members members
	}{flag, m})
	return m
}

// put has the member at a path be what a text says: JSON, a number with a unit, else the text.
func (m members) put(path, text string) {
	key, rest, inner := strings.Cut(path, ".")
	if inner {
		of, _ := m[key].(members)
		if of == nil {
			of = members{}
			m[key] = of
		}
		of.put(rest, text)
		return
	}
	key, isList := strings.CutSuffix(key, "+")
	n, err := humanInt(text)
	switch {
	case isList:
		before, _ := m[key].([]string)
		m[key] = append(before, strings.Split(text, ",")...)
	case json.Valid([]byte(text)):
		m[key] = json.RawMessage(text)
	case err == nil:
		m[key] = n
	default:
		m[key] = text
	}
}

// appendTo appends the flags to a command line.
func (o givenMembers) appendTo(args []string) []string {
	for _, x := range o {
		raw, err := json.Marshal(x.members)
		if err != nil {
			panic(err) // all of it has been read as JSON, or is text
		}
		args = append(args, x.flag+"="+string(raw))
	}
	return args
}
