package tokenizer

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// protoPiece is a piece of a model as its file has it.
func protoPiece(text string, score float32, kind uint64) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, text)
	b = protowire.AppendTag(b, 2, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, math.Float32bits(score))
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	return protowire.AppendVarint(b, kind)
}

// protoModel is a model of pieces. spec and normal are the numbers of trainer_spec and
// normalizer_spec by field.
func protoModel(pieces [][]byte, spec, normal map[protowire.Number]uint64) string {
	var file []byte
	for _, p := range pieces {
		file = protowire.AppendTag(file, 1, protowire.BytesType)
		file = protowire.AppendBytes(file, p)
	}
	for field, numbers := range map[protowire.Number]map[protowire.Number]uint64{2: spec,
		3: normal} {
		var message []byte
		for number, value := range numbers {
			message = protowire.AppendTag(message, number, protowire.VarintType)
			message = protowire.AppendVarint(message, value)
		}
		file = protowire.AppendTag(file, field, protowire.BytesType)
		file = protowire.AppendBytes(file, message)
	}
	return string(file)
}

type numbers = map[protowire.Number]uint64

// bpeModelType is model_type of BPE.
var bpeModelType = numbers{3: 2}

// TestMergeOrder: pieces merge by their score, the leftmost first where scores are the same.
func TestMergeOrder(t *testing.T) {
	file := protoModel([][]byte{
		protoPiece("<unk>", 0, pieceUnknown), protoPiece("bc", -1, pieceNormal),
		protoPiece("ab", -1, pieceNormal), protoPiece("cc", -2, pieceNormal),
		protoPiece("a", -3, pieceNormal), protoPiece("b", -4, pieceNormal),
		protoPiece("c", -5, pieceNormal),
	}, bpeModelType, numbers{3: 0})
	tok, err := Open(memory{"tokenizer.model": file})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"abc": "ab|c", "bcc": "bc|c", "xyab": "<unk>|ab",
		strings.Repeat("abc", 30): strings.TrimSuffix(strings.Repeat("ab|c|", 30), "|")} {
		if got := tokens(tok, text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestSentencePieceRefuses(t *testing.T) {
	unknown := protoPiece("<unk>", 0, pieceUnknown)
	for _, c := range []struct{ name, file, want string }{
		{"no pieces", "\n", "protocol buffer"},
		{"cut off", "\n\x7fa", "field 1"},
		{"empty piece", protoModel([][]byte{protoPiece("", 0, 1)}, nil, nil), "piece 0 is empty"},
		{"piece that is no text", protoModel([][]byte{protoPiece("\xff", 0, 1)}, nil, nil),
			"not UTF-8"},
		{"type of a piece", protoModel([][]byte{protoPiece("a", 0, 9)}, nil, nil), "type 9"},
		{"score", protoModel([][]byte{protoPiece("a", float32(math.NaN()), 1)}, nil, nil),
			"no number"},
		{"piece twice", protoModel([][]byte{unknown, unknown}, nil, nil), "listed twice"},
		{"unk_id", protoModel([][]byte{unknown}, numbers{40: 1}, nil), "unk_id 1"},
		{"words", protoModel([][]byte{unknown}, numbers{3: 3}, nil), "model_type 3"},
		{"suffixes", protoModel([][]byte{unknown}, numbers{24: 1}, nil), "suffix true"},
		{"spaces", protoModel([][]byte{unknown}, nil, numbers{5: 0}), "whitespaces false"},
		{"unused piece", protoModel([][]byte{unknown, protoPiece("a", 0, pieceUnused)},
			bpeModelType, nil), `"a" is unused`},
		{"no normal piece", protoModel([][]byte{unknown}, nil, nil), "none of 1 pieces"},
		{"long piece", protoModel([][]byte{unknown, protoPiece(strings.Repeat("a", 2000), 0, 1)},
			bpeModelType, nil), "2000 bytes"},
		{"long piece of Unigram", protoModel([][]byte{unknown, protoPiece(strings.Repeat("a", 2000),
			0, 1)}, nil, nil), "2000 bytes"},
	} {
		_, err := Open(memory{"tokenizer.model": c.file})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzOpen reads all kinds of files but tokenizer.json, which FuzzParse reads.
func FuzzOpen(f *testing.F) {
	names := []string{"tokenizer.model", "tekken.json", "qwen.tiktoken", "vocab.txt",
		"spiece.model", "sentencepiece.bpe.model", "tiktoken.model"}
	classes := []string{"", "T5Tokenizer", "TikTokenTokenizer", "LlamaTokenizer"}
	for _, name := range []string{"sp-llama/tokenizer.model", "sp-unigram/tokenizer.model"} {
		f.Add(uint8(0), uint8(3), readSource(f, name), "")
	}
	f.Add(uint8(1), uint8(0), readSource(f, "tekken/tekken.json"), `{"bos_token":"x"}`)
	f.Add(uint8(2), uint8(0), rankLines("ab", "abc"), "")
	f.Add(uint8(6), uint8(2), rankLines("ab"), `{"added_tokens_decoder":{"256":{"content":"x"}}}`)
	f.Add(uint8(3), uint8(0), "[UNK]\n[CLS]\n[SEP]\na\n##b\n", `{"do_lower_case":false}`)
	f.Add(uint8(0), uint8(0), protoModel([][]byte{protoPiece("<unk>", 0, pieceUnknown),
		protoPiece("ab", -1, pieceNormal), protoPiece("a", -2, pieceUserDefined)}, bpeModelType,
		nil), "")
	f.Add(uint8(4), uint8(1), protoModel([][]byte{protoPiece("<unk>", 0, pieceUnknown),
		protoPiece("</s>", 0, pieceControl), protoPiece("a", -2, pieceNormal)}, nil, nil), "")
	f.Fuzz(func(t *testing.T, name, class uint8, file, config string) {
		if len(file) > 1<<16 {
			return
		}
		folder := memory{names[int(name)%len(names)]: file, "tokenizer_config.json": config}
		if config == "" {
			folder["config.json"] = "{}"
			folder["tokenizer_config.json"] = `{"tokenizer_class":"` +
				classes[int(class)%len(classes)] + `"}`
		}
		tok, err := Open(folder)
		if err != nil {
			return
		}
		checkUse(t, tok, "", "a b▁c <x> é 12", "\xff\n\n", "AB aB's 中a")
	})
}
