package schema_test

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// byteVocabulary has a token for each byte, and one that ends an answer.
func byteVocabulary() *constrain.Vocabulary {
	tokens := make([][]byte, 257)
	for i := range 256 {
		tokens[i] = []byte{byte(i)}
	}
	return constrain.NewVocabulary(tokens, nil, 256)
}

// matches says whether a constraint admits a whole text.
func matches(c *constrain.Compiled, text string) bool {
	m := c.Matcher()
	for i := range len(text) {
		if !m.Accept(int32(text[i])) {
			return false
		}
	}
	return m.Accepting()
}

// respaced appends JSON with one space behind each comma and colon, as Python writes it, and with
// every character in its plain spelling; numbers and the order of keys stay.
func respaced(b []byte, raw json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	type level struct {
		object bool
		n      int
	}
	stack := []level{{}}
	for {
		t, err := d.Token()
		if err == io.EOF {
			return b
		}
		if err != nil {
			panic(err)
		}
		in := &stack[len(stack)-1]
		delim, _ := t.(json.Delim)
		if delim != '}' && delim != ']' {
			switch {
			case in.object && in.n%2 == 1:
				b = append(b, ": "...)
			case in.n > 0:
				b = append(b, ", "...)
			}
			in.n++
		}
		switch x := t.(type) {
		case json.Delim:
			b = append(b, byte(x))
			if x == '{' || x == '[' {
				stack = append(stack, level{object: x == '{'})
			} else {
				stack = stack[:len(stack)-1]
			}
		case string:
			b = append(append(append(b, '"'), regex.JSONSpell(x)...), '"')
		case json.Number:
			b = append(b, x...)
		case bool:
			b = append(b, map[bool]string{true: "true", false: "false"}[x]...)
		default:
			b = append(b, "null"...)
		}
	}
}
