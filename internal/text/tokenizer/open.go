package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNotFound says that a model folder has no file of a tokenizer.
var ErrNotFound = errors.New("no tokenizer.json, tekken.json, tokenizer.model, *.tiktoken or " +
	"vocab.txt in the model folder")

// maxFileSize bounds the files that Load reads; the largest published tokenizer.json is some 40 MB.
const maxFileSize = 256 << 20

// Folder is where the files of a tokenizer are.
type Folder interface {
	// ReadFile returns the content of a file, and an error that wraps [fs.ErrNotExist] when there
	// is none of that name.
	ReadFile(name string) ([]byte, error)
	// Names lists the files.
	Names() []string
}

// sources are the files that hold a tokenizer. The first one in a folder counts, which is
// tokenizer.json as with transformers.
var sources = []struct {
	match func(name string) bool
	parse func(name string, data []byte, c *Config) (parts, error)
}{
	{named("tekken.json"), parseTekken},
	{named("tiktoken.model"), parseTiktoken},
	{named("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"), parseModel},
	{func(name string) bool { return strings.HasSuffix(name, ".tiktoken") }, parseTiktoken},
	{named("vocab.txt"), parseVocabText},
}

func named(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

// configNames are what Open reads beside the tokenizer itself.
var configNames = []string{"tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "config.json"}

// Names picks of the names of a folder's files those that Open reads.
func Names(names []string) []string {
	wanted := []string{"tokenizer.json", "tokenizer_config.json"}
	if !slices.Contains(names, wanted[0]) {
		source, _ := findSource(names)
		wanted = append(slices.Clone(configNames), source)
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.Contains(wanted, name)
	})
}

// findSource returns the file that holds the tokenizer when there is no tokenizer.json, and which
// of sources it is; "" when there is none.
func findSource(names []string) (name string, source int) {
	for i, s := range sources {
		if at := slices.IndexFunc(names, s.match); at >= 0 {
			return names[at], i
		}
	}
	return "", 0
}

// Open reads the tokenizer of a model folder: tokenizer.json; else tekken.json of Mistral; else a
// model of SentencePiece or ranks of tiktoken, which are told apart by what is in the file
// (tokenizer.model is either); else BERT's vocab.txt. For all but the first tokenizer_config.json
// says which conventions hold: its tokenizer_class, or config.json's model_type, must be known, for
// a class may number or treat tokens in its own way. The error is ErrNotFound when there is none of
// these files.
func Open(folder Folder) (*Tokenizer, error) {
	names := folder.Names()
	read := func(name string) ([]byte, error) {
		if !slices.Contains(names, name) {
			return nil, nil
		}
		return folder.ReadFile(name)
	}
	config, err := read("tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	if slices.Contains(names, "tokenizer.json") {
		data, err := folder.ReadFile("tokenizer.json")
		if err != nil {
			return nil, err
		}
		return Parse(data, config)
	}
	name, at := findSource(names)
	if name == "" {
		return nil, ErrNotFound
	}
	data, err := folder.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c, err := readConfig(config, read)
	if err != nil {
		return nil, err
	}
	p, err := sources[at].parse(name, data, &c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return newTokenizer(p, c), nil
}

// readConfig reads tokenizer_config.json, and where that has no added_tokens_decoder the files that
// held special and added tokens before. Without tokenizer_class the model's type stands for it.
func readConfig(data []byte, read func(name string) ([]byte, error)) (c Config, err error) {
	all := map[string]map[string]json.RawMessage{}
	for _, name := range configNames {
		if name != "tokenizer_config.json" {
			if data, err = read(name); err != nil {
				return c, err
			}
		}
		if all[name], err = parseFields(data); err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	fields := all["tokenizer_config.json"]
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	if isNull(fields["added_tokens_decoder"]) {
		maps.Copy(fields, all["special_tokens_map.json"])
		added, err := addedBefore(all["added_tokens.json"])
		if err != nil {
			return c, fmt.Errorf("added_tokens.json: %w", err)
		}
		if added != nil {
			fields["added_tokens_decoder"] = added
		}
	}
	if isNull(fields["tokenizer_class"]) {
		if class := classOfModel(all["config.json"]["model_type"]); class != "" {
			fields["tokenizer_class"], err = json.Marshal(class)
		}
	}
	if err == nil {
		c, err = configOf(fields)
	}
	if err != nil {
		return c, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	return c, nil
}

// addedBefore turns added_tokens.json, {"token": id}, into what is added_tokens_decoder today.
func addedBefore(fields map[string]json.RawMessage) (json.RawMessage, error) {
	if len(fields) == 0 {
		return nil, nil
	}
	tokens := make(map[int64]addedToken, len(fields))
	for text, raw := range fields {
		var id int64
		if err := json.Unmarshal(raw, &id); err != nil {
			return nil, fmt.Errorf("token %q: %w", text, err)
		}
		if other, ok := tokens[id]; ok {
			return nil, fmt.Errorf("tokens %q and %q have the same id %d", other.Content, text, id)
		}
		tokens[id] = addedToken{Content: text}
	}
	return json.Marshal(tokens)
}

// classOfModel is the tokenizer_class that transformers has for a model_type, where that is not
// Llama's.
func classOfModel(modelType json.RawMessage) string {
	var name string
	if json.Unmarshal(modelType, &name) != nil {
		return ""
	}
	switch name {
	case "t5", "mt5", "umt5", "longt5":
		return "T5Tokenizer"
	case "xlm-roberta", "xlm-roberta-xl":
		return "XLMRobertaTokenizer"
	case "bert", "distilbert", "electra":
		return "BertTokenizer"
	}
	return ""
}

// Load is Open for the folder dir, with chat_template.jinja if it is there. The error is
// ErrNotFound also when there is no such folder.
func Load(dir string) (*Tokenizer, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	folder := directory{path: dir}
	for _, e := range entries {
		folder.names = append(folder.names, e.Name())
	}
	t, err := Open(folder)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: %s", err, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("load tokenizer from %s: %w", dir, err)
	}
	// Newer checkpoints keep the chat template in a file of its own, which then takes precedence.
	text, err := folder.ReadFile("chat_template.jinja")
	if err == nil {
		t.config.ChatTemplates["default"] = string(text)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	return t, nil
}

// directory is a Folder on disk.
type directory struct {
	path  string
	names []string
}

func (d directory) Names() []string { return d.names }

func (d directory) ReadFile(name string) ([]byte, error) {
	path := filepath.Join(d.path, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFileSize)
	}
	return os.ReadFile(path)
}
