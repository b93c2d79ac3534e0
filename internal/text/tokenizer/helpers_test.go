package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// object is a JSON object under construction.
type object = map[string]any

func encodeJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustParse(t testing.TB, v object) *Tokenizer {
	t.Helper()
	tok, err := Parse(encodeJSON(t, v), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// added returns an added_tokens entry; more is merged into it.
func added(id int, content string, special bool, more object) object {
	o := object{"id": id, "content": content, "special": special, "single_word": false,
		"lstrip": false, "rstrip": false, "normalized": false}
	maps.Copy(o, more)
	return o
}

func sequence(list string, steps ...object) object {
	return object{"type": "Sequence", list: steps}
}

// llamaTokens are the tokens of llamaStyle behind <unk>, <s>, </s> and the 256 bytes, from id 259
// up.
var llamaTokens = []string{"▁", "t", "h", "e", "a", "▁t", "he", "▁the", "▁a", "▁▁", "at", "▁▁▁▁"}

// llamaStyle is a small tokenizer made like that of Llama 2: no pre-tokenizer, byte fallback, a
// word mark in front of the text.
func llamaStyle() object {
	vocab := object{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = 3 + b
	}
	for i, token := range llamaTokens {
		vocab[token] = 259 + i
	}
	return object{
		"version": "1.0",
		"added_tokens": []object{
			added(0, "<unk>", true, nil), added(1, "<s>", true, nil), added(2, "</s>", true, nil),
		},
		"normalizer": sequence("normalizers",
			object{"type": "Prepend", "prepend": "▁"},
			object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}),
		"pre_tokenizer": nil,
		"post_processor": object{"type": "TemplateProcessing",
			"single": []object{
				{"SpecialToken": object{"id": "<s>", "type_id": 0}},
				{"Sequence": object{"id": "A", "type_id": 0}},
			},
			"pair": []object{},
			"special_tokens": object{"<s>": object{"id": "<s>", "ids": []int{1},
				"tokens": []string{"<s>"}}},
		},
		"decoder": sequence("decoders",
			object{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "},
			object{"type": "ByteFallback"},
			object{"type": "Fuse"},
			object{"type": "Strip", "content": " ", "start": 1, "stop": 0}),
		"model": object{
			"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
			"vocab":  vocab,
			"merges": []string{"▁ t", "h e", "▁t he", "▁ a", "▁ ▁", "a t", "▁▁ ▁▁"},
		},
	}
}

// model returns a BPE model section over single letters and the given merges, numbered in order.
func model(letters string, merges []string, more object) object {
	vocab := object{}
	for _, r := range letters {
		vocab[string(r)] = len(vocab)
	}
	for _, m := range merges {
		vocab[strings.ReplaceAll(m, " ", "")] = len(vocab)
	}
	o := object{"type": "BPE", "vocab": vocab, "merges": append([]string{}, merges...)}
	maps.Copy(o, more)
	return o
}

// tokens returns the tokens of a text, joined by "|".
func tokens(tok *Tokenizer, text string) string {
	var parts []string
	for _, id := range tok.Encode(text, false) {
		s, _ := tok.Token(id)
		parts = append(parts, s)
	}
	return strings.Join(parts, "|")
}
