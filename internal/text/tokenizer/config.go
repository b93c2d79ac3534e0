package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Config is what tokenizer_config.json says beyond tokenizer.json. Fields that it lacks are zero.
type Config struct {
	// BOSToken, EOSToken, PadToken and UnkToken are the texts of those tokens.
	BOSToken, EOSToken, PadToken, UnkToken string
	// SpecialTokens holds the text of every "…_token" entry under its key ("bos_token",
	// "sep_token", …), as chat templates see them.
	SpecialTokens map[string]string
	// AdditionalSpecialTokens are the texts under additional_special_tokens.
	AdditionalSpecialTokens []string
	// ChatTemplates are the chat templates by name; the plain one is "default".
	ChatTemplates map[string]string
	// AddBOS is add_bos_token. The post-processor in tokenizer.json decides what Encode adds.
	AddBOS bool
	// ModelMaxLength is the longest input in tokens, 0 when the file sets no real limit.
	ModelMaxLength int
	// Fields are all members of tokenizer_config.json as they stand there.
	Fields map[string]json.RawMessage
}

// tokenText is a token in tokenizer_config.json: null, a string, or an object with its content.
type tokenText struct {
	text string
	set  bool
}

func (t *tokenText) UnmarshalJSON(data []byte) error {
	var object struct {
		Content *string `json:"content"`
	}
	switch data[0] {
	case '"':
		t.set = true
		return json.Unmarshal(data, &t.text)
	case '{':
		if err := json.Unmarshal(data, &object); err != nil {
			return err
		}
		if object.Content != nil {
			t.text, t.set = *object.Content, true
		}
	}
	return nil
}

// parseConfig reads tokenizer_config.json; data may be empty.
func parseConfig(data []byte) (Config, error) {
	fields, err := parseFields(data)
	if err != nil {
		return Config{}, err
	}
	return configOf(fields)
}

// parseFields reads the members of an object; data may be empty.
func parseFields(data []byte) (fields map[string]json.RawMessage, err error) {
	if len(bytes.TrimSpace(data)) > 0 {
		err = json.Unmarshal(data, &fields)
	}
	return fields, err
}

func configOf(fields map[string]json.RawMessage) (Config, error) {
	c := Config{SpecialTokens: map[string]string{}, ChatTemplates: map[string]string{},
		Fields: fields}
	for key, value := range fields {
		if !strings.HasSuffix(key, "_token") {
			continue
		}
		var t tokenText
		if err := json.Unmarshal(value, &t); err != nil {
			return c, fmt.Errorf("%s: %w", key, err)
		}
		if t.set {
			c.SpecialTokens[key] = t.text
		}
	}
	c.BOSToken, c.EOSToken = c.SpecialTokens["bos_token"], c.SpecialTokens["eos_token"]
	c.PadToken, c.UnkToken = c.SpecialTokens["pad_token"], c.SpecialTokens["unk_token"]
	if err := c.parseRest(fields); err != nil {
		return c, err
	}
	return c, nil
}

func (c *Config) parseRest(fields map[string]json.RawMessage) error {
	if raw := fields["additional_special_tokens"]; !isNull(raw) {
		var list []tokenText
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("additional_special_tokens: %w", err)
		}
		for _, t := range list {
			c.AdditionalSpecialTokens = append(c.AdditionalSpecialTokens, t.text)
		}
	}
	if raw := fields["add_bos_token"]; !isNull(raw) {
		if err := json.Unmarshal(raw, &c.AddBOS); err != nil {
			return fmt.Errorf("add_bos_token: %w", err)
		}
	}
	if raw := fields["model_max_length"]; !isNull(raw) {
		// "No limit" is written as 1e30, as an integer or a float.
		var n float64
		if err := json.Unmarshal(raw, &n); err != nil {
			return fmt.Errorf("model_max_length: %w", err)
		}
		if n > 0 && n < 1<<31 {
			c.ModelMaxLength = int(n)
		}
	}
	return c.parseTemplates(fields["chat_template"])
}

// parseTemplates reads chat_template: one template, or a list of named ones.
func (c *Config) parseTemplates(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	if raw[0] == '"' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return fmt.Errorf("chat_template: %w", err)
		}
		c.ChatTemplates["default"] = text
		return nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("chat_template: %w", err)
	}
	for _, t := range list {
		c.ChatTemplates[t.Name] = t.Template
	}
	return nil
}

// class is tokenizer_class, without the "Fast" that only says which code reads it; "" without one.
func (c *Config) class() string {
	var name string
	if json.Unmarshal(c.Fields["tokenizer_class"], &name) != nil {
		return ""
	}
	return strings.TrimSuffix(name, "Fast")
}

// flag is a member that is true or false, otherwise what it is without it.
func (c *Config) flag(name string, otherwise bool) (bool, error) {
	raw := c.Fields[name]
	if isNull(raw) {
		return otherwise, nil
	}
	var value bool
	if err := json.Unmarshal(raw, &value); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

// flagOrNull is a member that may be null, which is nil here.
func (c *Config) flagOrNull(name string) (*bool, error) {
	if isNull(c.Fields[name]) {
		return nil, nil
	}
	value, err := c.flag(name, false)
	return &value, err
}

// extend enters the tokens that the configuration adds to those of the tokenizer's own file, base,
// into the vocabulary, and returns all of them, by id: those of added_tokens_decoder, which may
// rename others, then special tokens that are nowhere yet, behind the vocabulary, as transformers
// does.
func (c *Config) extend(v *vocabulary, base []addedToken) ([]addedToken, error) {
	tokens := map[int64]addedToken{}
	for _, t := range base {
		tokens[t.ID] = t
	}
	if raw := c.Fields["added_tokens_decoder"]; !isNull(raw) {
		var listed map[int64]addedToken
		if err := json.Unmarshal(raw, &listed); err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: %w", err)
		}
		limit := int64(maxID(v.size() + len(listed)))
		for _, id := range slices.Sorted(maps.Keys(listed)) {
			t := listed[id]
			if t.ID = id; id < 0 || id >= limit || t.Content == "" {
				return nil, fmt.Errorf("added_tokens_decoder: token %q with id %d, which is not "+
					"in [0, %d), or without content", t.Content, id, limit)
			}
			put := v.add
			if v.has(int32(id)) {
				put = v.rename
			}
			if err := put(int32(id), t.Content); err != nil {
				return nil, fmt.Errorf("added_tokens_decoder: %w", err)
			}
			tokens[id] = t
		}
	}
	for _, text := range c.specialTexts() {
		id, ok := v.id(text)
		if !ok {
			id = int32(len(v.text))
			if err := v.add(id, text); err != nil {
				return nil, err
			}
		}
		t, ok := tokens[int64(id)]
		if !ok {
			t = addedToken{ID: int64(id), Content: text}
		}
		t.Special = true
		tokens[int64(id)] = t
	}
	list := make([]addedToken, 0, len(tokens))
	for _, id := range slices.Sorted(maps.Keys(tokens)) {
		list = append(list, tokens[id])
	}
	return list, nil
}

// setDefault names a special token that the configuration does not, if the vocabulary has it.
func (c *Config) setDefault(v *vocabulary, name, text string) {
	if _, ok := v.id(text); !ok || c.SpecialTokens[name] != "" {
		return
	}
	c.SpecialTokens[name] = text
	c.BOSToken, c.EOSToken = c.SpecialTokens["bos_token"], c.SpecialTokens["eos_token"]
	c.PadToken, c.UnkToken = c.SpecialTokens["pad_token"], c.SpecialTokens["unk_token"]
}

// specialTexts lists the special tokens in transformers' order.
func (c *Config) specialTexts() []string {
	var texts []string
	for _, key := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
		"cls_token", "mask_token"} {
		texts = append(texts, c.SpecialTokens[key])
	}
	texts = append(texts, c.AdditionalSpecialTokens...)
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

// ends is the template of a tokenizer that puts a token before a text, after it, or neither.
func ends(v *vocabulary, bos, eos string) (*templates, error) {
	text := []int32{markA}
	if bos != "" {
		id, err := v.find(bos)
		if err != nil {
			return nil, err
		}
		text = []int32{id, markA}
	}
	if eos != "" {
		id, err := v.find(eos)
		if err != nil {
			return nil, err
		}
		text = append(text, id)
	}
	t := &templates{single: text, pair: slices.Clone(text)}
	for _, id := range text {
		if id == markA {
			id = markB
		}
		t.pair = append(t.pair, id)
	}
	return t, nil
}
