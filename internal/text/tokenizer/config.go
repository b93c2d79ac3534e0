package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	c := Config{SpecialTokens: map[string]string{}, ChatTemplates: map[string]string{}}
	if len(bytes.TrimSpace(data)) == 0 {
		return c, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return c, err
	}
	c.Fields = fields
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
