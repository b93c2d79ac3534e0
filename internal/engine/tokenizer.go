package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/chattemplate"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/tokenizer"
)

// readTokenizer loads the tokenizer and the chat template.
func (b *opening) readTokenizer() error {
	if b.cfg.Model.SkipTokenizerInit {
		return nil
	}
	folder := b.folder
	if t := b.cfg.Model.Tokenizer; t != "" {
		dir, err := b.download(t)
		if err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		if folder, err = checkpoint.Dir(dir); err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
	}
	return b.loadTokenizer(folder)
}

func (b *opening) loadTokenizer(folder checkpoint.Folder) error {
	raw, err := folder.ReadFile("tokenizer.json")
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("model %q has no tokenizer.json: give --tokenizer, or serve token ids "+
			"with --skip-tokenizer-init", b.info.Root)
	}
	if err != nil {
		return err
	}
	var tokConfig []byte
	if slices.Contains(folder.Names(), "tokenizer_config.json") {
		if tokConfig, err = folder.ReadFile("tokenizer_config.json"); err != nil {
			return err
		}
	}
	if b.info.Tokenizer, err = tokenizer.Parse(raw, tokConfig); err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	source, from, err := b.templateSource(folder)
	if err != nil || source == "" {
		return err
	}
	if b.info.Template, err = chattemplate.Parse(source); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// templateSource finds the chat template: the flag's, the folder's own file, the tokenizer's.
func (b *opening) templateSource(folder checkpoint.Folder) (source, from string, err error) {
	if t := b.cfg.Model.ChatTemplate; t != "" {
		raw, err := os.ReadFile(t)
		if err == nil {
			return string(raw), "--chat-template " + t, nil
		}
		if looksLikeTemplate(t) {
			return t, "--chat-template", nil
		}
		return "", "", fmt.Errorf("--chat-template: %w", err)
	}
	if slices.Contains(folder.Names(), "chat_template.jinja") {
		raw, err := folder.ReadFile("chat_template.jinja")
		return string(raw), "chat_template.jinja", err
	}
	return b.info.Tokenizer.Config().ChatTemplates["default"],
		"chat template of tokenizer_config.json", nil
}

// looksLikeTemplate tells a template given as text from a path that does not exist.
func looksLikeTemplate(s string) bool {
	return strings.Contains(s, "{{") ||
		strings.Contains(s, "{%")
}
