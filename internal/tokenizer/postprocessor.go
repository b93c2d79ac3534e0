package tokenizer

import (
	"encoding/json"
	"fmt"
)

// sequenceMark stands in a template for the tokens of the text.
const sequenceMark = -1

// maxTemplate bounds the number of pieces of a template.
const maxTemplate = 1 << 10

// template is what a post-processor makes of one text: special token ids and sequenceMark in order.
type template []int32

// parsePostProcessor compiles the post_processor section. It returns nil when nothing is added.
func parsePostProcessor(data json.RawMessage, v *vocabulary) (template, error) {
	steps, err := flatten(data, "post_processor", "processors", 0,
		func(kind string, data json.RawMessage) (template, error) {
			return parsePostProcessorStep(kind, data, v)
		})
	if err != nil {
		return nil, err
	}
	var result template
	for _, step := range steps {
		if step == nil {
			continue
		}
		if result != nil {
			return nil, fmt.Errorf("post_processor Sequence with more than one step that adds tokens is not supported")
		}
		result = step
	}
	return result, nil
}

func parsePostProcessorStep(kind string, data json.RawMessage, v *vocabulary) (template, error) {
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
		return template{int32(spec.Cls.id), sequenceMark, int32(spec.Sep.id)}, nil
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

func parseTemplate(data json.RawMessage, v *vocabulary) (template, error) {
	type part struct {
		ID string `json:"id"`
	}
	var spec struct {
		Single []struct {
			Sequence     *part
			SpecialToken *part
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int64 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, err
	}
	result := template{}
	for _, p := range spec.Single {
		switch {
		case p.Sequence != nil && p.Sequence.ID == "A":
			result = append(result, sequenceMark)
		case p.Sequence != nil:
			return nil, fmt.Errorf("template for one text names sequence %q", p.Sequence.ID)
		case p.SpecialToken != nil:
			token, ok := spec.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("template names %q, which is not among its special_tokens",
					p.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if err := checkTemplateID(v, p.SpecialToken.ID, id); err != nil {
					return nil, err
				}
				result = append(result, int32(id))
			}
		default:
			return nil, fmt.Errorf("template has a piece that is neither Sequence nor SpecialToken")
		}
		if len(result) > maxTemplate {
			return nil, fmt.Errorf("template has more than %d pieces", maxTemplate)
		}
	}
	return result, nil
}
