package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const longer = "more than 4096 times as long"

// many is a section of n equal steps.
func many(list string, n int, step string) string {
	return `{"type":"Sequence","` + list + `":[` + step + strings.Repeat(","+step, n-1) + `]}`
}

func TestMalformedFiles(t *testing.T) {
	const plain = `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	tests := []struct {
		name, file, want string
	}{
		{"empty", ``, "unexpected end"},
		{"not an object", `[]`, "'['"},
		{"cut off", `{"model":{"type":"BPE","vocab":{"a":0`, "expected , or }"},
		{"goes on", `{` + plain + `} x`, "data after the JSON object"},
		{"goes on with zeros", "{" + plain + "}\x00", "data after the JSON object"},
		{"no model", `{}`, "no model section"},
		{"two models", `{` + plain + `,` + plain + `}`, "model is listed twice"},
		{"not UTF-8", "{\"\xff\":0,\"model\":{}}", "invalid UTF-8"},
		{"value not UTF-8", "{\"x\":\"\xff\",\"model\":{}}", "invalid UTF-8"},
		{"section twice", `{"x":1,"x":2,` + plain + `}`, "x is listed twice"},
		{"field twice", `{"model":{"type":"BPE","type":"BPE","vocab":{},"merges":[]}}`,
			"type is listed twice"},
		{"name twice in a section", `{"x":{"y":[{"a":1,"a":2}]},` + plain + `}`,
			`x: duplicate key "a"`},
		{"merges twice", `{"model":{"type":"BPE","vocab":{},"merges":[],"merges":[]}}`,
			"merges are listed twice"},
		{"vocab twice", `{"model":{"type":"BPE","vocab":{},"vocab":{},"merges":[]}}`,
			"vocab is listed twice"},
		{"control character", "{\"mo\x01del\":1}", "control character"},
		{"deep", `{"x":` + strings.Repeat("[", 100000) + `}`, "deeper than 64 levels"},
		{"half a surrogate", `{"model":{"vocab":{"\ud800":1}}}`, "surrogate"},
		{"unknown escape", `{"model":{"vocab":{"\q":1}}}`, "escape"},
		{"trailing comma", `{"model":{"vocab":{"a":1,}}}`, "comma"},
		{"other model", `{"model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}}}`,
			`model type "WordLevel" is not supported`},
		{"Unigram without unk_id", `{"model":{"type":"Unigram","vocab":[["a",0]]}}`, "no unk_id"},
		{"Unigram with unk_id outside", `{"model":{"type":"Unigram","unk_id":1,"vocab":[["a",0]]}}`,
			"unk_id 1"},
		{"Unigram with an object", `{"model":{"type":"Unigram","unk_id":0,"vocab":{"a":0}}}`,
			"no vocab list"},
		{"BPE with a list", `{"model":{"type":"BPE","merges":[],"vocab":[["a",0]]}}`,
			"no vocab object"},
		{"score is text", `{"model":{"type":"Unigram","unk_id":0,"vocab":[["a","b"]]}}`,
			"vocab 0"},
		{"score missing", `{"model":{"type":"Unigram","unk_id":0,"vocab":[["a"]]}}`,
			"1 values instead of"},
		{"long piece", `{"model":{"type":"Unigram","unk_id":0,"vocab":[["` +
			strings.Repeat("a", 2000) + `",0]]}}`, "2000 bytes"},
		{"WordPiece without unk_token", `{"model":{"type":"WordPiece","vocab":{"a":0}}}`,
			`unk_token "[UNK]"`},
		{"WordPiece with a long token", `{"model":{"type":"WordPiece","unk_token":"a","vocab":{"a":0,"` +
			strings.Repeat("b", 2000) + `":1}}}`, "2000 bytes"},
		{"WordPiece with short words", `{"model":{"type":"WordPiece","unk_token":"a","vocab":{"a":0},"max_input_chars_per_word":-1}}`, "-1"},
		{"no type", `{"model":{"vocab":{"a":0}}}`, "neither a type nor merges"},
		{"no vocabulary", `{"model":{"type":"BPE","merges":[]}}`, "no vocab object"},
		{"dropout", `{"model":{"type":"BPE","dropout":0.1,"vocab":{},"merges":[]}}`, "dropout 0.1"},
		{"duplicate id", `{"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}}`,
			`tokens "a" and "b" have the same id 0`},
		{"duplicate token", `{"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}}`,
			`token "a" is listed twice`},
		{"negative id", `{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`, "-1"},
		{"giant id", `{"model":{"type":"BPE","vocab":{"a":99999999999999999999999},"merges":[]}}`,
			`"a"`},
		{"fractional id", `{"model":{"type":"BPE","vocab":{"a":1.5},"merges":[]}}`, "1.5"},
		{"id far out", `{"model":{"type":"BPE","vocab":{"a":4000000},"merges":[]}}`,
			"4000000 is out of range"},
		{"id is text", `{"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}}`,
			"expected a number, got '\"'"},
		{"merge of unknown", `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a c"]}}`,
			`merge 0: token "c" is not in the vocabulary`},
		{"merge into unknown", `{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}`,
			`merged token "ab"`},
		{"merge of one", `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}}`,
			"not two tokens"},
		{"merge of three", `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}}`,
			"not two tokens"},
		{"merge of three in a list",
			`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a","a"]]}}`, "merge 0"},
		{"merges are no list", `{"model":{"type":"BPE","vocab":{"a":0},"merges":7}}`, "'['"},
		{"unknown unk_token", `{"model":{"type":"BPE","unk_token":"?","vocab":{"a":0},"merges":[]}}`, `unk_token "?"`},
		{"short prefixed merge",
			`{"model":{"type":"BPE","continuing_subword_prefix":"##","vocab":{"a":0,"b":1},"merges":["a b"]}}`, "shorter than"},
		{"normalizer", `{"normalizer":{"type":"Nmt"},` + plain + `}`,
			`normalizer type "Nmt" is not supported`},
		{"charsmap cut off", `{"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAA="},` +
			plain + `}`, "cut off"},
		{"charsmap of another size",
			`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"CAAAAAAA"},` + plain + `}`,
			"trie of 8 bytes"},
		{"charsmap no base64",
			`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"?"},` + plain + `}`,
			"normalizer Precompiled"},
		{"pre-tokenizer", `{"pre_tokenizer":{"type":"UnicodeScripts"},` + plain + `}`,
			`pre_tokenizer type "UnicodeScripts" is not supported`},
		{"nested pre-tokenizer",
			`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"FixedLength"}]},` +
				plain + `}`, `"FixedLength"`},
		{"sequence without list", `{"pre_tokenizer":{"type":"Sequence"},` + plain + `}`,
			"pretokenizers"},
		{"deep sequence", `{"pre_tokenizer":` +
			strings.Repeat(`{"type":"Sequence","pretokenizers":[`, 20) + strings.Repeat(`]}`, 20) +
			`,` + plain + `}`, "nest"},
		{"bad regex", `{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated","invert":false},` + plain + `}`, `pattern "(a"`},
		{"no pattern", `{"pre_tokenizer":{"type":"Split","behavior":"Isolated"},` + plain + `}`,
			"pattern is empty"},
		{"bad behavior", `{"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Shaken"},` + plain + `}`, `"Shaken"`},
		{"no behavior", `{"pre_tokenizer":{"type":"Split","pattern":{"String":"a"}},` + plain + `}`,
			"no behavior"},
		{"metaspace contradiction",
			`{"pre_tokenizer":{"type":"Metaspace","replacement":"▁","add_prefix_space":false,"prepend_scheme":"always"},` + plain + `}`, "contradicts"},
		{"metaspace replacement", `{"pre_tokenizer":{"type":"Metaspace","replacement":""},` +
			plain + `}`, "not one character"},
		{"metaspace scheme", `{"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"often"},` + plain + `}`, `"often"`},
		{"post-processor", `{"post_processor":{"type":"Other"},` + plain + `}`,
			`post_processor type "Other" is not supported`},
		{"template id", `{"post_processor":{"type":"BertProcessing","sep":["x",7],"cls":["y",0]},` +
			plain + `}`, `"x" has id 7`},
		{"template name", `{"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{}},` + plain + `}`, `"x"`},
		{"template sequence", `{"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}],"special_tokens":{}},` + plain + `}`, `no sequence "B"`},
		{"two templates", `{"post_processor":{"type":"Sequence","processors":[{"type":"BertProcessing","sep":["a",0],"cls":["a",0]},{"type":"BertProcessing","sep":["a",0],"cls":["a",0]}]},` + plain + `}`, "more than one"},
		{"decoder", `{"decoder":{"type":"CTC"},` + plain + `}`,
			`decoder type "CTC" is not supported`},
		{"normalizer that doubles", `{"normalizer":` + many("normalizers", 60,
			`{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`) + `,` + plain + `}`,
			longer},
		{"expression that doubles", `{"normalizer":` + many("normalizers", 60,
			`{"type":"Replace","pattern":{"Regex":"(?=a)"},"content":"a"}`) + `,` + plain + `}`,
			longer},
		{"long prepends", `{"normalizer":` + many("normalizers", 9,
			`{"type":"Prepend","prepend":"`+strings.Repeat("a", 1000)+`"}`) + `,` + plain + `}`,
			longer},
		{"bytes of bytes in the normalizer", `{"normalizer":` + many("normalizers", 60,
			`{"type":"ByteLevel"}`) + `,` + plain + `}`, longer},
		{"bytes of bytes in the pre-tokenizer", `{"pre_tokenizer":` + many("pretokenizers",
			60, `{"type":"ByteLevel"}`) + `,` + plain + `}`, longer},
		{"charsmaps", `{"normalizer":` + many("normalizers", 60,
			`{"type":"Precompiled","precompiled_charsmap":""}`) + `,` + plain + `}`, longer},
		{"decoder that doubles", `{"decoder":` + many("decoders", 60,
			`{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`) + `,` + plain + `}`,
			longer},
		{"strip content", `{"decoder":{"type":"Strip","content":"ab","start":1,"stop":0},` + plain +
			`}`, "not one character"},
		{"strip number", `{"decoder":{"type":"Strip","content":"a","start":-1,"stop":0},` + plain +
			`}`, "decoder Strip"},
		{"added token id", `{"added_tokens":[{"id":90000000,"content":"x"}],` + plain + `}`,
			`"x" has id 90000000`},
		{"negative added token id", `{"added_tokens":[{"id":-3,"content":"x"}],` + plain + `}`,
			`"x" has id -3`},
		{"giant added token id", `{"added_tokens":[{"id":1e99,"content":"x"}],` + plain + `}`,
			"added_tokens"},
		{"same added ids", `{"added_tokens":[{"id":5,"content":"x"},{"id":5,"content":"y"}],` +
			plain + `}`, `"x" and "y" have the same id 5`},
		{"added id taken", `{"added_tokens":[{"id":1,"content":"x"}],` + plain + `}`,
			`token "b" has already`},
		{"added tokens are no list", `{"added_tokens":{},` + plain + `}`, "added_tokens"},
	}
	for _, test := range tests {
		_, err := Parse([]byte(test.file), nil)
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(),
			"tokenizer.json: ") {
			t.Errorf("%s: error %q does not say %q", test.name, err, test.want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, ErrNotFound) {
		t.Errorf("without a file the error is %v", err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tokenizer.json", `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`)
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(tok.Config().ChatTemplates) != 0 {
		t.Error("a chat template out of nowhere")
	}
	write("tokenizer_config.json", `{"chat_template":"old","eos_token":"a"}`)
	write("chat_template.jinja", "new")
	if tok, err = Load(dir); err != nil {
		t.Fatal(err)
	}
	if got := tok.Config(); got.ChatTemplates["default"] != "new" || got.EOSToken != "a" {
		t.Errorf("config is %+v", got)
	}
	write("tokenizer_config.json", `{"model_max_length":"x"}`)
	if _, err = Load(dir); err == nil || !strings.Contains(err.Error(), "model_max_length") {
		t.Errorf("error is %v", err)
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		text string
		want Config
	}{
		{`{}`, Config{}},
		{``, Config{}},
		{`{"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"pad_token":null,"unk_token":"<unk>","add_bos_token":true,
			"model_max_length":4096,"chat_template":"T","additional_special_tokens":["<a>",{"content":"<b>"}]}`,
			Config{BOSToken: "<s>", EOSToken: "</s>", UnkToken: "<unk>", AddBOS: true,
				ModelMaxLength: 4096,
				SpecialTokens: map[string]string{"bos_token": "<s>", "eos_token": "</s>",
					"unk_token": "<unk>"},
				AdditionalSpecialTokens: []string{"<a>", "<b>"},
				ChatTemplates:           map[string]string{"default": "T"}}},
		{`{"model_max_length":1000000000000000019884624838656,"add_bos_token":null,"chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"U"}]}`,
			Config{ChatTemplates: map[string]string{"default": "D", "tool_use": "U"}}},
		{`{"model_max_length":1e30,"image_token":"<img>"}`,
			Config{SpecialTokens: map[string]string{"image_token": "<img>"}}},
	}
	for _, test := range tests {
		got, err := parseConfig([]byte(test.text))
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if test.want.SpecialTokens == nil {
			test.want.SpecialTokens = map[string]string{}
		}
		if test.want.ChatTemplates == nil {
			test.want.ChatTemplates = map[string]string{}
		}
		var fields map[string]json.RawMessage
		if test.text != "" {
			if err := json.Unmarshal([]byte(test.text), &fields); err != nil {
				t.Fatal(err)
			}
		}
		test.want.Fields = fields
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s gives %+v, want %+v", test.text, got, test.want)
		}
	}
	for _, bad := range []string{`[`, `{"bos_token":"\`, `{"add_bos_token":"x"}`,
		`{"chat_template":7}`, `{"additional_special_tokens":7}`} {
		if _, err := parseConfig([]byte(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestTinyModel(t *testing.T) {
	tok := loadTiny(t)
	if got := tok.VocabSize(); got != 2048 {
		t.Errorf("VocabSize is %d", got)
	}
	if id, ok := tok.ID("<|im_end|>"); !ok || id != 2047 || !tok.IsSpecial(id) {
		t.Errorf("<|im_end|> has id %d, special %v", id, tok.IsSpecial(id))
	}
	if s, ok := tok.Token(tok.Encode(" t", false)[0]); !ok || s != "Ġt" {
		t.Errorf(`the token of " t" is %q`, s)
	}
	if _, ok := tok.Token(2048); ok || tok.IsSpecial(2048) || tok.IsSpecial(-1) ||
		tok.IsSpecial(0) {
		t.Error("ids out of range are known or special")
	}
	c := tok.Config()
	if c.EOSToken != "<|im_end|>" || c.PadToken != "<|endoftext|>" || c.BOSToken != "" ||
		c.ModelMaxLength != 2048 || c.AddBOS {
		t.Errorf("config is %+v", c)
	}
	const text = "package main\n\nfunc main() {\n\tprintln(\"hi\")\n}\n"
	if got := tok.Decode(tok.Encode(text, true), true); got != text {
		t.Errorf("comes back as %q", got)
	}
	if got := tok.Encode("<|im_start|>user<|im_end|>", true); got[0] != 2046 ||
		got[len(got)-1] != 2047 {
		t.Errorf("special tokens are not cut out: %v", got)
	}
	for id := range int32(tok.VocabSize()) {
		s, ok := tok.Token(id)
		if back, found := tok.ID(s); !ok || !found || back != id {
			t.Fatalf("token %d is %q, which has id %d", id, s, back)
		}
	}
}

// Both spellings of merges, and a model section in another order, give the same tokenizer.
func TestMergeSpellings(t *testing.T) {
	files := []string{
		`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`,
		`{"model":{"merges":[["a","b"]],"vocab":{"a":0,"b":1,"ab":2},"type":"BPE"}}`,
		`{"model":{"vocab":{"\u0061":0,"b":1,"a\u0062":2},"merges":["#version: 0.2","a b"]}}`,
	}
	for _, file := range files {
		tok, err := Parse([]byte(file), nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if got := tok.Encode("aab", false); !slices.Equal(got, []int32{0, 2}) {
			t.Errorf("%s: %v", file, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(string(encodeJSON(f, llamaStyle())))
	for _, section := range decoderSections() {
		f.Add(string(encodeJSON(f, object{"model": model("abc▁", []string{"▁ a", "b c"}, nil),
			"decoder": section})))
	}
	level := object{"type": "ByteLevel", "add_prefix_space": true}
	f.Add(string(encodeJSON(f, object{"model": model("abcĠ", []string{"Ġ a"},
		object{"ignore_merges": true}),
		"pre_tokenizer": sequence("pretokenizers", object{"type": "Digits"},
			object{"type": "Punctuation"}, level),
		"added_tokens": []object{added(20, "<x>", true, object{"lstrip": true, "rstrip": true,
			"single_word": true, "normalized": true})},
		"normalizer": sequence("normalizers", object{"type": "NFKC"},
			object{"type": "Lowercase"})})))
	f.Fuzz(func(t *testing.T, file string) {
		if len(file) > 1<<14 {
			return
		}
		tok, err := Parse([]byte(file), []byte(file))
		if err != nil {
			return
		}
		checkUse(t, tok, "", "a b▁c <x> é 12", "\xff\n\n")
	})
}

// checkUse encodes texts with a tokenizer of any file, and decodes what comes of them.
func checkUse(t *testing.T, tok *Tokenizer, texts ...string) {
	t.Helper()
	for _, text := range texts {
		ids := tok.Encode(text, true)
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok {
				t.Fatalf("Encode(%q) gives the unknown id %d", text, id)
			}
		}
		if !utf8.ValidString(tok.Decode(ids, false)) {
			t.Fatal("Decode gives no UTF-8")
		}
		checkStream(t, tok, ids, len(ids)/2, true)
	}
	for id := range int32(min(tok.VocabSize(), 300)) {
		tok.TokenBytes(id)
	}
}

func ExampleParse() {
	tok, err := Parse([]byte(
		`{"model":{"type":"BPE","vocab":{"h":0,"i":1,"hi":2},"merges":["h i"]}}`), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tok.Encode("hih", false))
	// Output: [2 0]
}
