// Package sentence reads what sentence-transformers keeps beside a model that makes vectors of
// texts: which modules follow it (modules.json), and the prompts and lengths of its texts. What
// changes a vector and is not known is refused by name.
package sentence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"encoding/json"

	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Model is what follows the hidden states of a model, and what precedes its texts.
type Model struct {
	// Pooling is how one state is made of those of all tokens.
	Pooling step.Pooling
	// Dense are the layers that the pooled state passes, in their order.
	Dense []*Dense
	// Normalize makes vectors of length 1.
	Normalize bool
	// MaxLength is the most tokens of a text, 0 for as many as the model has positions.
	MaxLength int
	// Lower makes letters small before they are tokens.
	Lower bool
	// Prompts are put before texts, by name; Default is the name of the one that a text has
	// without being asked for, "" for none.
	Prompts map[string]string
	Default string
}

// maxFile bounds the files that are read whole.
const maxFile = 16 << 20

// Read reads the files in a model's folder; nil is a folder without modules.json. width is that of
// the model's hidden states.
func Read(dir string, width int) (*Model, error) {
	var list []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	found, err := readJSON(filepath.Join(dir, "modules.json"), &list)
	if err != nil || !found {
		return nil, err
	}
	m := &Model{}
	for i, x := range list {
		kind := x.Type[strings.LastIndexByte(x.Type, '.')+1:]
		if err := m.add(kind, filepath.Join(dir, filepath.FromSlash(x.Path)), x.Path,
			i, width); err != nil {
			return nil, fmt.Errorf("modules.json: module %d, %s: %w", i, checkpoint.Short(x.Type),
				err)
		}
		if m.Pooling != step.NotPooled && len(m.Dense) > 0 {
			width = m.Dense[len(m.Dense)-1].Out
		}
	}
	if m.Pooling == step.NotPooled {
		return nil, errors.New("modules.json has no module that pools")
	}
	if err := m.readTexts(dir); err != nil {
		return nil, err
	}
	return m, nil
}

// add adds a module.
func (m *Model) add(kind, dir, path string, i, width int) error {
	if path != "" && !filepath.IsLocal(filepath.FromSlash(path)) {
		return fmt.Errorf("path %s leads out of the model's folder", checkpoint.Short(path))
	}
	if m.Normalize {
		return errors.New("nothing is known to follow Normalize")
	}
	switch {
	case kind == "Transformer" && i == 0:
		if path != "" {
			return fmt.Errorf("the model is in the folder %s: serve that one",
				checkpoint.Short(path))
		}
		return nil
	case kind == "Pooling" && i == 1:
		return m.readPooling(filepath.Join(dir, "config.json"), width)
	case kind == "Dense" && i > 1:
		d, err := readDense(dir, width)
		m.Dense = append(m.Dense, d)
		return err
	case kind == "Normalize" && i > 1:
		m.Normalize = true
		return nil
	}
	return errors.New("is not supported there (Transformer, Pooling, any number of Dense and " +
		"Normalize, in this order)")
}

// modes are the kinds of pooling by their names in pooling_mode, and the older pooling_mode_….
var modes = []struct {
	name, flag string
	kind       step.Pooling
}{
	{"cls", "cls_token", step.PoolCLS},
	{"max", "max_tokens", step.PoolMax},
	{"mean", "mean_tokens", step.PoolMean},
	{"mean_sqrt_len_tokens", "mean_sqrt_len_tokens", step.PoolMeanSqrt},
	{"weightedmean", "weightedmean_tokens", step.PoolWeighted},
	{"lasttoken", "lasttoken", step.PoolLast},
}

// readPooling reads a Pooling module.
func (m *Model) readPooling(file string, width int) error {
	f, err := readFields(file)
	if err != nil {
		return err
	}
	for _, key := range []string{"word_embedding_dimension", "embedding_dimension"} {
		if n := f.Integer(key, width, 1, checkpoint.MaxDim); n != width {
			return fmt.Errorf("%s is %d, the model's states have %d elements", key, n, width)
		}
	}
	if !f.Flag("include_prompt", true) {
		return errors.New("include_prompt is false: prompts that are not pooled are not supported")
	}
	const key = "pooling_mode"
	var asked []string
	switch {
	case !f.Set(key):
		for _, x := range modes {
			if f.Flag(key+"_"+x.flag, false) {
				asked = append(asked, x.name)
			}
		}
		if len(asked) == 0 {
			asked = []string{"mean"}
		}
	case strings.HasPrefix(f.Excerpt(key), "["):
		asked = f.Texts(key)
	default:
		asked = []string{f.Text(key, "")}
	}
	if f.Err() != nil {
		return f.Err()
	}
	if len(asked) != 1 {
		return fmt.Errorf("pooling_mode: %s are pooled side by side, one is supported",
			strings.Join(asked, " and "))
	}
	for _, x := range modes {
		if x.name == asked[0] {
			m.Pooling = x.kind
			return nil
		}
	}
	return fmt.Errorf("pooling_mode is %s", checkpoint.Short(asked[0]))
}

// readTexts reads what is done to texts.
func (m *Model) readTexts(dir string) error {
	const prompts = "config_sentence_transformers.json"
	var s struct {
		MaxLength *int `json:"max_seq_length"`
		Lower     bool `json:"do_lower_case"`
	}
	bounds := ""
	for _, of := range []string{"bert", "roberta", "xlm-roberta"} { // the first one is today's
		bounds = "sentence_" + of + "_config.json"
		found, err := readJSON(filepath.Join(dir, bounds), &s)
		if err != nil {
			return err
		}
		if found {
			break
		}
	}
	if m.Lower = s.Lower; s.MaxLength != nil {
		if m.MaxLength = *s.MaxLength; m.MaxLength < 2 {
			return fmt.Errorf("%s: max_seq_length is %d", bounds, m.MaxLength)
		}
	}
	var p struct {
		Prompts    map[string]string `json:"prompts"`
		Default    *string           `json:"default_prompt_name"`
		Similarity *string           `json:"similarity_fn_name"`
	}
	if _, err := readJSON(filepath.Join(dir, prompts), &p); err != nil {
		return err
	}
	m.Prompts = p.Prompts
	if p.Default != nil {
		m.Default = *p.Default
		if _, ok := m.Prompts[m.Default]; !ok {
			return fmt.Errorf("%s: default_prompt_name is %s, which is none of the prompts",
				prompts, checkpoint.Short(m.Default))
		}
	}
	if p.Similarity != nil && *p.Similarity != "cosine" && *p.Similarity != "dot" {
		return fmt.Errorf("%s: similarity_fn_name is %s, which is not supported (cosine, dot)",
			prompts, checkpoint.Short(*p.Similarity))
	}
	return nil
}

// readJSON reads a file if it is there.
func readJSON(path string, into any) (found bool, err error) {
	raw, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return true, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return true, nil
}

// readFields reads the config.json of a module.
func readFields(path string) (*checkpoint.Fields, error) {
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	f, err := checkpoint.ReadFields(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxFile:
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, maxFile)
	}
	return os.ReadFile(path)
}
