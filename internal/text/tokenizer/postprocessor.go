package tokenizer

import (
	"encoding/json"
	"fmt"
)

// Marks that stand in a template for the tokens of a text.
const (
	markA = -1 // the only one, or the first of two
	markB = -2
)

// maxTemplate bounds the number of pieces of a template.
const maxTemplate = 1 << 10

// templates are what a post-processor makes of one text and of two: special token ids and marks in
// order.
type templates struct{ single, pair []int32 }

// parsePostProcessor compiles the post_processor section.
func parsePostProcessor(data json.RawMessage, v *vocabulary) (*templates, error) {
	steps, err := flatten(data, "post_processor", "processors", 0, nil,
		func(kind string, data json.RawMessage, _ *growth) (*templates, error) {
			return parsePostProcessorStep(kind, data, v)
		})
	if err != nil {
		return nil, err
	}
	var result *templates
	for _, step := range steps {
		if step == nil {
			continue
		}
		if result != nil {
			return nil, fmt.Errorf("post_processor Sequence with more than one step that adds " +
				"tokens is not supported")
		}
		result = step
	}
	if result == nil {
		result = &templates{single: []int32{markA}, pair: []int32{markA, markB}}
	}
	return result, nil
}

// parsePostProcessorStep returns nil for a step that adds nothing.
func parsePostProcessorStep(kind string, data json.RawMessage, v *vocabulary) (*templates, error) {
	switch kind {
	case "ByteLevel": // only moves offsets
		return nil, nil
	case "TemplateProcessing":
		return parseTemplate(data, v)
	case "BertProcessing", "RobertaProcessing":
		var spec struct {
			Sep namedToken `json:"sep"`
			Cls namedToken `json:"cls"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			return nil, err
		}
		for _, t := range []namedToken{spec.Cls, spec.Sep} {
			if err := checkTemplateID(v, t.name, t.id); err != nil {
				return nil, err
			}
		}
		cls, sep := int32(spec.Cls.id), int32(spec.Sep.id)
		t := &templates{single: []int32{cls, markA, sep},
			pair: []int32{cls, markA, sep, markB, sep}}
		if kind == "RobertaProcessing" {
			t.pair = []int32{cls, markA, sep, sep, markB, sep}
		}
		return t, nil
	}
	return nil, errUnsupported
}

// namedToken is written ["</s>", 2].
type namedToken struct {
	name string
	id   int64
}

func (t *namedToken) UnmarshalJSON(data []byte) error {
	var fields []json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	if len(fields) != 2 {
		return fmt.Errorf("token %s is not a pair of name and id", data)
	}
	if err := json.Unmarshal(fields[0], &t.name); err != nil {
		return err
	}
	return json.Unmarshal(fields[1], &t.id)
}

func checkTemplateID(v *vocabulary, name string, id int64) error {
	if id < 0 || id >= maxVocabulary || !v.has(int32(id)) {
		return fmt.Errorf("token %q has id %d, which is not in the vocabulary", name, id)
	}
	return nil
}

// templatePiece is one of its fields.
type templatePiece struct {
	Sequence, SpecialToken *struct {
		ID string `json:"id"`
	}
}

func parseTemplate(data json.RawMessage, v *vocabulary) (*templates, error) {
	var spec struct {
		Single        []templatePiece
		Pair          []templatePiece
		SpecialTokens map[string]struct {
			IDs []int64 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, err
	}
	special := map[string][]int32{}
	for name, token := range spec.SpecialTokens {
		special[name] = []int32{}
		for _, id := range token.IDs {
			if err := checkTemplateID(v, name, id); err != nil {
				return nil, err
			}
			special[name] = append(special[name], int32(id))
		}
	}
	single, err := compileTemplate(spec.Single, special, map[string]int32{"A": markA})
	if err != nil {
		return nil, fmt.Errorf("template for one text: %w", err)
	}
	pair, err := compileTemplate(spec.Pair, special, map[string]int32{"A": markA, "B": markB})
	if err != nil {
		return nil, fmt.Errorf("template for two texts: %w", err)
	}
	if len(spec.Pair) == 0 {
		pair = []int32{markA, markB}
	}
	return &templates{single: single, pair: pair}, nil
}

func compileTemplate(pieces []templatePiece, special map[string][]int32,
	texts map[string]int32) ([]int32, error) {
	result := []int32{}
	for _, p := range pieces {
		switch {
		case p.Sequence != nil:
			mark, ok := texts[p.Sequence.ID]
			if !ok {
				return nil, fmt.Errorf("there is no sequence %q", p.Sequence.ID)
			}
			result = append(result, mark)
		case p.SpecialToken != nil:
			ids, ok := special[p.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("%q is not among its special_tokens", p.SpecialToken.ID)
			}
			result = append(result, ids...)
		default:
			return nil, fmt.Errorf("a piece is neither Sequence nor SpecialToken")
		}
		if len(result) > maxTemplate {
			return nil, fmt.Errorf("more than %d pieces", maxTemplate)
		}
	}
	return result, nil
}
