package tokenizer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// rankFamily is what the code of a family of models knows beside its file of ranks.
type rankFamily struct {
	pattern string
	// special are its special tokens, whose ids follow the ranks; "" leaves an id free.
	special func(ranks int, c *Config) []string
	bos     string // "" where none goes in front of a text
}

// familyOfRanks tells the family of a file by its name, by tokenizer_class and by the tokens that
// tokenizer_config.json adds. One that is not known is refused: with the wrong pattern most texts
// would still divide as they should, and some would not.
func familyOfRanks(name string, ranks int, c *Config) (rankFamily, error) {
	class := c.class()
	switch {
	case class == "TikTokenTokenizer":
		return rankFamily{pattern: patternKimi, special: kimiSpecial}, nil
	case class == "QWenTokenizer" || class == "" && name == "qwen.tiktoken":
		return rankFamily{pattern: patternQwen2, special: qwenSpecial}, nil
	case class == "" && name == "cl100k_base.tiktoken":
		return rankFamily{pattern: patternOpenAI, special: cl100kSpecial}, nil
	case class == "" && name == "o200k_base.tiktoken":
		return rankFamily{pattern: patternO200K, special: o200kSpecial}, nil
	case name == "tokenizer.model" && isLlama3(class, c):
		return rankFamily{pattern: patternCL100K, special: listedSpecial,
			bos: llama3Begin}, nil
	}
	return rankFamily{}, fmt.Errorf("ranks of tiktoken of an unknown family (tokenizer_class %q, "+
		"%d ranks): the pattern that divides text is not known", class, ranks)
}

// llama3Begin is the token with which texts of Llama 3 begin.
const llama3Begin = "<|begin_of_text|>"

// isLlama3 reports whether ranks in tokenizer.model are of Llama 3: the configuration names the
// token with which its texts begin.
func isLlama3(class string, c *Config) bool {
	switch class {
	case "", "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend":
	default:
		return false
	}
	for _, t := range addedOf(c) {
		if t.Content == llama3Begin {
			return true
		}
	}
	return false
}

// listedSpecial are none beside those that the configuration lists.
func listedSpecial(int, *Config) []string { return nil }

// addedOf is added_tokens_decoder; extend reports what is wrong with it.
func addedOf(c *Config) map[int64]addedToken {
	var listed map[int64]addedToken
	_ = json.Unmarshal(c.Fields["added_tokens_decoder"], &listed)
	return listed
}

// kimiSpecial are 258 slots, those without a name in the configuration with one of their own
// (tokenization_kimi.py).
func kimiSpecial(ranks int, c *Config) []string {
	listed := addedOf(c)
	texts := make([]string, 258)
	for i := range texts {
		id := ranks + i
		if texts[i] = listed[int64(id)].Content; texts[i] == "" {
			texts[i] = "<|reserved_token_" + strconv.Itoa(id) + "|>"
		}
	}
	return texts
}

// qwenSpecial are those of Qwen 1 (tokenization_qwen.py).
func qwenSpecial(int, *Config) []string {
	return append(strings.Fields("<|endoftext|> <|im_start|> <|im_end|>"),
		numbered("<|extra_", 0, 205)...)
}

// cl100kSpecial and o200kSpecial are those of tiktoken, which leaves ids between them free.
func cl100kSpecial(int, *Config) []string {
	texts := o200kSpecial(0, nil)
	texts[2], texts[3], texts[4] = "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"
	return texts
}

func o200kSpecial(int, *Config) []string {
	texts := make([]string, 21)
	texts[1], texts[20] = "<|endoftext|>", "<|endofprompt|>"
	return texts
}

// numbered are tokens "<prefix>N|>" from one number up to another, which is not among them.
func numbered(prefix string, from, to int) []string {
	var texts []string
	for i := from; i < to; i++ {
		texts = append(texts, prefix+strconv.Itoa(i)+"|>")
	}
	return texts
}
