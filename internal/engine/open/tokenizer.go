package open

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// readTokenizer loads the tokenizer and the chat template.
func (r *resolver) readTokenizer() error {
	if r.Config.Model.SkipTokenizerInit {
		return nil
	}
	folder := r.folder
	if t := r.Config.Model.Tokenizer; t != "" {
		dir, err := r.download(t, r.Config.Model.Revision)
		if err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		if folder, err = r.tokenizerFolder(dir); err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		if r.tokenizerDir, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
	}
	return r.loadTokenizer(folder)
}

// tokenizerFolder is the folder of --tokenizer, held like the model's.
func (r *resolver) tokenizerFolder(dir string) (checkpoint.Folder, error) {
	if r.Files == nil {
		return checkpoint.Dir(dir)
	}
	held, err := checkpoint.Pin(dir, false)
	r.Files.tokenizer = held
	return held, err
}

func (r *resolver) loadTokenizer(folder checkpoint.Folder) error {
	var err error
	r.Info.Tokenizer, err = tokenizer.Open(folder)
	if errors.Is(err, tokenizer.ErrNotFound) {
		return fmt.Errorf("model %q has %w: give --tokenizer, or serve token ids with "+
			"--skip-tokenizer-init", r.Info.Root, err)
	}
	if err != nil {
		return fmt.Errorf("model %q: %w", r.Info.Root, err)
	}
	r.Info.Grammars = grammars.New(func() (*constrain.Vocabulary, error) {
		return grammars.Vocabulary(r.Info.Tokenizer, r.Info.Ends()...), nil
	}, (machine.Cores()+1)/2)
	if r.Info.Template, err = r.template(folder, "default", "chat_template.jinja"); err != nil {
		return err
	}
	if r.Config.Model.ChatTemplate == "" { // which is that of all conversations
		r.Info.ToolTemplate, err = r.template(folder, "tool_use", checkpoint.ToolTemplate)
	}
	return err
}

// template is the chat template of a name, which may be in a file of its own; nil for none.
func (r *resolver) template(folder checkpoint.Folder, name,
	file string) (t *chattemplate.Template, err error) {
	source, from, err := r.templateSource(folder, name, file)
	if err != nil || source == "" {
		return nil, err
	}
	if line, column := firstInvalid(source); line > 0 {
		return nil, fmt.Errorf("%s: chat template line %d, column %d: not valid UTF-8", from, line,
			column)
	}
	if t, err = chattemplate.Parse(source); err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return t, nil
}

// firstInvalid is the line, and the byte of it, both from 1, where a text is not UTF-8; 0 when it
// is.
func firstInvalid(s string) (line, column int) {
	if utf8.ValidString(s) {
		return 0, 0
	}
	end := 0
	for end < len(s) {
		r, size := utf8.DecodeRuneInString(s[end:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		end += size
	}
	return strings.Count(s[:end], "\n") + 1, end - strings.LastIndexByte(s[:end], '\n')
}

// templateSource finds a chat template: the flag's, the folder's own file, the tokenizer's where
// the folder has no such file.
func (r *resolver) templateSource(folder checkpoint.Folder, name,
	file string) (source, from string, err error) {
	if t := r.Config.Model.ChatTemplate; t != "" {
		raw, err := os.ReadFile(t)
		if err == nil {
			return string(raw), "--chat-template " + t, nil
		}
		if looksLikeTemplate(t) {
			return t, "--chat-template", nil
		}
		return "", "", usage("--chat-template: %w", err)
	}
	switch names := folder.Names(); {
	case slices.Contains(names, file):
		raw, err := folder.ReadFile(file)
		return string(raw), file, err
	case slices.Contains(names, "chat_template.jinja"):
		return "", "", nil
	}
	return r.Info.Tokenizer.Config().ChatTemplates[name],
		"chat template of tokenizer_config.json", nil
}

// looksLikeTemplate tells a template given as text from a path that does not exist.
func looksLikeTemplate(s string) bool {
	return strings.Contains(s, "{{") ||
		strings.Contains(s, "{%")
}
