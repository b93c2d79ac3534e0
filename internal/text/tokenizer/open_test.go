package tokenizer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// memory is a Folder of texts.
type memory map[string]string

func (m memory) Names() []string { return slices.Sorted(maps.Keys(m)) }

func (m memory) ReadFile(name string) ([]byte, error) {
	data, ok := m[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return []byte(data), nil
}

// rankLines are ranks of all bytes and of more tokens.
func rankLines(more ...string) string {
	var b strings.Builder
	tokens := make([]string, 256, 256+len(more))
	for i := range tokens {
		tokens[i] = string([]byte{byte(i)})
	}
	for i, token := range append(tokens, more...) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), i)
	}
	return b.String()
}

// readSource is a file of the fixtures.
func readSource(t testing.TB, name string) string {
	t.Helper()
	data, err := directory{path: filepath.Join("testdata", "sources")}.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestOpenChooses: the first kind of file in a folder counts.
func TestOpenChooses(t *testing.T) {
	const plain = `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`
	all := memory{
		"tokenizer.json":  plain,
		"tekken.json":     readSource(t, "tekken/tekken.json"),
		"tiktoken.model":  rankLines("ab"),
		"tokenizer.model": readSource(t, "sp-llama/tokenizer.model"),
		"qwen.tiktoken":   rankLines("ab"),
		"vocab.txt":       "[UNK]\n[CLS]\n[SEP]\na\n",
		"config.json":     `{"model_type":"llama"}`, "model.safetensors": "",
	}
	for _, c := range []struct {
		first, class, has string
		reads             []string
	}{
		{"tokenizer.json", "", "a", []string{"tokenizer.json", "tokenizer_config.json"}},
		{"tekken.json", "", "[INST]", []string{"config.json", "tekken.json",
			"tokenizer_config.json"}},
		{"tiktoken.model", "TikTokenTokenizer", "<|reserved_token_260|>", []string{"config.json",
			"tiktoken.model", "tokenizer_config.json"}},
		{"tokenizer.model", "LlamaTokenizer", "<0x0A>", []string{"config.json", "tokenizer.model",
			"tokenizer_config.json"}},
		{"qwen.tiktoken", "QWenTokenizer", "<|extra_204|>", []string{"config.json",
			"qwen.tiktoken", "tokenizer_config.json"}},
		{"vocab.txt", "BertTokenizer", "[CLS]", []string{"config.json", "tokenizer_config.json",
			"vocab.txt"}},
	} {
		all["tokenizer_config.json"] = fmt.Sprintf(`{"tokenizer_class":%q}`, c.class)
		tok, err := Open(all)
		if err != nil {
			t.Fatalf("%s: %v", c.first, err)
		}
		if _, ok := tok.ID(c.has); !ok {
			t.Errorf("%s: no token %q", c.first, c.has)
		}
		if got := Names(all.Names()); !slices.Equal(got, c.reads) {
			t.Errorf("%s: reads %v", c.first, got)
		}
		delete(all, c.first)
	}
	if _, err := Open(all); !errors.Is(err, ErrNotFound) {
		t.Errorf("without any: %v", err)
	}
}

// TestOpenRefuses: what a file does not say and is not known is an error that names it.
func TestOpenRefuses(t *testing.T) {
	llama := readSource(t, "sp-llama/tokenizer.model")
	for _, c := range []struct {
		name  string
		files memory
		want  string
	}{
		{"an unknown class", memory{"tokenizer.model": llama,
			"tokenizer_config.json": `{"tokenizer_class":"XGLMTokenizer"}`},
			`tokenizer.model: tokenizer_class "XGLMTokenizer"`},
		{"a class of words for BPE", memory{"sentencepiece.bpe.model": llama},
			"sentencepiece.bpe.model: XLMRobertaTokenizer needs a Unigram model"},
		{"too many sentinels", memory{"spiece.model": llama,
			"tokenizer_config.json": `{"tokenizer_class":"T5Tokenizer","extra_ids":1000000000}`},
			"extra_ids 1000000000"},
		{"ranks without a family", memory{"tokenizer.model": rankLines()},
			`tokenizer_class "", 256 ranks`},
		{"ranks of an unknown family", memory{"tokenizer.model": rankLines(),
			"tokenizer_config.json": `{"tokenizer_class":"ChatGLM4Tokenizer"}`},
			`tokenizer_class "ChatGLM4Tokenizer"`},
		{"ranks under an unknown name", memory{"some.tiktoken": rankLines()}, "unknown family"},
		{"ranks without all bytes", memory{"qwen.tiktoken": "IQ== 0\n"}, "not every byte"},
		{"rank out of order", memory{"qwen.tiktoken": "IQ== 1\n"}, `line 1 has rank "1", not 0`},
		{"no rank", memory{"qwen.tiktoken": "\nIQ==\n"}, "line 2 is not a token"},
		{"no base64", memory{"qwen.tiktoken": "?? 0\n"}, "line 1: token"},
		{"token twice", memory{"qwen.tiktoken": "IQ== 0\nIQ== 1\n"}, "line 2"},
		{"long token", memory{"qwen.tiktoken": rankLines(strings.Repeat("a", 2000))},
			"2000 bytes"},
		{"a class that is not BERT's", memory{"vocab.txt": "[UNK]\n",
			"tokenizer_config.json": `{"tokenizer_class":"MPNetTokenizer"}`}, `"MPNetTokenizer"`},
		{"vocab.txt without [UNK]", memory{"vocab.txt": "a\n"}, "unk_token"},
		{"vocab.txt without [CLS]", memory{"vocab.txt": "[UNK]\n[SEP]\n"}, "cls_token"},
		{"vocab.txt with a token twice", memory{"vocab.txt": "a\na\n"}, `"a" is listed twice`},
		{"vocab.txt that is no text", memory{"vocab.txt": "\xff\n"}, "not UTF-8"},
		{"a flag that is text", memory{"vocab.txt": "[UNK]\n[SEP]\n[CLS]\n",
			"tokenizer_config.json": `{"do_lower_case":"no"}`}, "do_lower_case"},
		{"tekken.json that is no JSON", memory{"tekken.json": "{"}, "tekken.json: "},
		{"tekken.json without tokens", memory{"tekken.json": `{"config":{"pattern":"a",
			"default_vocab_size":7,"default_num_special_tokens":2}}`}, "default_vocab_size 7"},
		{"tekken.json out of order", memory{"tekken.json": `{"vocab":[{"rank":1,
			"token_bytes":"IQ=="}],"config":{"pattern":"a","default_vocab_size":1}}`}, "rank 1"},
		{"an added id far out", memory{"tokenizer.model": llama,
			"tokenizer_config.json": `{"added_tokens_decoder":{"4000000":{"content":"x"}}}`},
			"4000000"},
		{"an added token with another id", memory{"tokenizer.model": llama,
			"tokenizer_config.json": `{"added_tokens_decoder":{"9":{"content":"<s>"}}}`},
			`"<s>" has id 1 and is given id 9`},
		{"an added token before", memory{"tokenizer.model": llama,
			"added_tokens.json": `{"x":"y"}`}, "added_tokens.json"},
	} {
		_, err := Open(c.files)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestOldConfiguration: folders older than added_tokens_decoder have two more files.
func TestOldConfiguration(t *testing.T) {
	tok, err := Open(memory{"tokenizer.model": readSource(t, "sp-llama/tokenizer.model"),
		"special_tokens_map.json": `{"eos_token":"<|end|>","pad_token":{"content":"<s>"}}`,
		"added_tokens.json":       `{"<|user|>":600,"<|end|>":601}`})
	if err != nil {
		t.Fatal(err)
	}
	want := []int32{1, 600, 601}
	if got := tok.Encode("<|user|><|end|>", true); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if c := tok.Config(); !tok.IsSpecial(601) || tok.IsSpecial(600) || c.PadToken != "<s>" ||
		c.BOSToken != "<s>" || c.UnkToken != "<unk>" {
		t.Errorf("special tokens are wrong: %+v", tok.Config())
	}
}
