package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// tekkenFile is tekken.json of Mistral: ranks as tiktoken has them, with the pattern. Special
// tokens have the first ids, and ranks follow.
type tekkenFile struct {
	Config struct {
		Pattern  string `json:"pattern"`
		Size     int    `json:"default_vocab_size"`
		Specials int    `json:"default_num_special_tokens"`
		Version  string `json:"version"`
	} `json:"config"`
	Vocab []struct {
		Rank  int    `json:"rank"`
		Bytes []byte `json:"token_bytes"`
	} `json:"vocab"`
	Special []struct {
		Rank    int    `json:"rank"`
		Text    string `json:"token_str"`
		Control bool   `json:"is_control"`
	} `json:"special_tokens"`
}

// tekkenSpecials are the special tokens of files up to version 7 that do not list them
// (mistral_common.tokens.tokenizers.tekken).
var tekkenSpecials = []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]",
	"[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>",
	"[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
	"[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}

// parseTekken reads tekken.json. Its special tokens are found in a text, as Hugging Face's form of
// these tokenizers does and mistral-common, which puts them in itself, does not.
func parseTekken(_ string, data []byte, c *Config) (p parts, err error) {
	if err := jsonx.Read(data, fileLimits, (*jsonx.Reader).Skip); err != nil {
		return p, err
	}
	var f tekkenFile
	if err := json.Unmarshal(data, &f); err != nil {
		return p, err
	}
	tokens, err := f.tokens()
	if err != nil {
		return p, err
	}
	if p, err = rankParts(tokens, f.Config.Specials, f.Config.Pattern); err != nil {
		return p, err
	}
	added, err := f.special(p.vocab)
	if err != nil {
		return p, err
	}
	for name, text := range map[string]string{"bos_token": "<s>", "eos_token": "</s>",
		"pad_token": "<pad>", "unk_token": "<unk>"} {
		c.setDefault(p.vocab, name, text)
	}
	if p.added, err = c.extend(p.vocab, added); err != nil {
		return p, err
	}
	p.template, err = ends(p.vocab, "<s>", "")
	return p, err
}

// tokens returns the tokens by rank: the first ones of the file, as many as the model has.
func (f *tekkenFile) tokens() ([]string, error) {
	count := f.Config.Size - f.Config.Specials
	if f.Config.Specials < 0 || f.Config.Specials > maxVocabulary || count < 0 ||
		count > len(f.Vocab) {
		return nil, fmt.Errorf("config has default_vocab_size %d and default_num_special_tokens "+
			"%d for %d tokens", f.Config.Size, f.Config.Specials, len(f.Vocab))
	}
	tokens := make([]string, count)
	for rank, token := range f.Vocab[:count] {
		if token.Rank != rank {
			return nil, fmt.Errorf("token %d of vocab has rank %d", rank, token.Rank)
		}
		tokens[rank] = string(token.Bytes)
		if tokens[rank] == "" {
			return nil, fmt.Errorf("token %d of vocab is empty", rank)
		}
	}
	return tokens, nil
}

// special enters the special tokens into the vocabulary. Ids that the file does not name have names
// of the form <SPECIAL_7>.
func (f *tekkenFile) special(v *vocabulary) ([]addedToken, error) {
	if limit := maxID(v.size()); f.Config.Specials > limit {
		return nil, fmt.Errorf("config has default_num_special_tokens %d, more than %d",
			f.Config.Specials, limit)
	}
	list := make([]addedToken, f.Config.Specials)
	enter := func(id int, text string, special bool) error {
		if id < 0 || id >= len(list) || list[id].Content != "" || text == "" {
			return fmt.Errorf("special token %q has rank %d, which is taken or not in [0, %d)",
				text, id, len(list))
		}
		list[id] = addedToken{ID: int64(id), Content: text, Special: special}
		return nil
	}
	for _, t := range f.Special {
		if err := enter(t.Rank, t.Text, t.Control); err != nil {
			return nil, err
		}
	}
	if f.Special == nil {
		switch f.Config.Version {
		case "v1", "v2", "v3", "v7":
		default:
			return nil, errors.New("there are no special_tokens")
		}
		for id, text := range tekkenSpecials[:min(len(tekkenSpecials), len(list))] {
			if err := enter(id, text, true); err != nil {
				return nil, err
			}
		}
	}
	for id := range list {
		if list[id].Content == "" {
			err := enter(id, "<SPECIAL_"+strconv.Itoa(id)+">", true)
			if err != nil {
				return nil, err
			}
		}
		if err := v.add(int32(id), list[id].Content); err != nil {
			return nil, err
		}
	}
	return list, nil
}
