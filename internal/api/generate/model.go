package generate

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Model is what requests are checked against: the served model, and the flags that bound what they
// may ask for.
type Model struct {
	*open.Info
	flags *config.Model
	// Answers are defaults of requests, kwargs those of chat_template_kwargs.
	Answers *config.Answers
	kwargs  []wire.Member
	// format and thinking are how the model writes calls and reasoning, nil where that is unknown.
	format   *output.Format
	Thinking *output.Thinking
}

// newModel takes the flags apart.
func newModel(info *open.Info, c *config.Config, lim wire.Limits) (Model, error) {
	m := Model{Info: info, flags: &c.Model, Answers: &c.Server.Answers}
	m.readers()
	if err := m.check(); err != nil {
		return m, err
	}
	text := m.Answers.ChatTemplateKwargs
	if text == "" {
		return m, nil
	}
	members, bad := wire.ParseObject([]byte(text), lim)
	for _, k := range members {
		if bad == nil {
			bad = checkKwarg(k.Key)
		}
	}
	if bad != nil {
		return m, &config.UsageError{Err: fmt.Errorf("--default-chat-template-kwargs: %s",
			bad.Message)}
	}
	m.kwargs = members
	return m, nil
}

// readers finds how the model writes calls and reasoning: by the flags, whose names are checked,
// else by its template.
func (m *Model) readers() {
	if m.Template != nil {
		m.format, m.Thinking = output.Detect(m.Template.Source())
	}
	if m.ToolTemplate != nil {
		m.format, _ = output.Detect(m.ToolTemplate.Source())
	}
	if name := m.flags.ToolCallParser; name != config.AutoParser {
		m.format = output.FormatNamed(name)
	}
	if name := m.flags.ReasoningParser; name != config.AutoParser {
		m.Thinking = output.ThinkingNamed(name)
	}
}

// check finds what would otherwise fail a request at a time.
func (m *Model) check() error {
	if len(m.Names) == 0 {
		return fmt.Errorf("model has no served name")
	}
	if m.MaxModelLen < 2 {
		return fmt.Errorf("max model length %d leaves no room for a prompt and an output",
			m.MaxModelLen)
	}
	if m.VocabSize < 1 || m.VocabSize > math.MaxInt32 {
		return fmt.Errorf("vocabulary size %d is not possible", m.VocabSize)
	}
	if int(m.EOS) >= m.VocabSize {
		return fmt.Errorf("end-of-sequence token %d is outside the vocabulary of %d", m.EOS,
			m.VocabSize)
	}
	if m.flags.MaxLogprobs < -1 {
		return fmt.Errorf("max logprobs %d is neither -1 nor a count", m.flags.MaxLogprobs)
	}
	for _, id := range m.StopTokens {
		if id < 0 || int(id) >= m.VocabSize {
			return fmt.Errorf("generation config: stop token %d is outside the vocabulary of %d",
				id, m.VocabSize)
		}
	}
	if n := m.Generation.MaxTokens; n != nil && *n < 1 {
		return fmt.Errorf("generation config: max_new_tokens %d is below 1", *n)
	}
	s := Sampling{Overrides: sample.Overrides{Settings: m.Generation}}
	if err := s.checkRanges(); err != nil {
		return fmt.Errorf("generation config: %w", err)
	}
	return nil
}

// MaxLogprobs is the most log-probabilities per token.
func (m *Model) MaxLogprobs() int {
	if m.flags.MaxLogprobs == -1 {
		return m.VocabSize
	}
	return m.flags.MaxLogprobs
}

// serves reports whether name is one of the model's.
func (m *Model) serves(name string) bool {
	return slices.Contains(m.Names, name)
}
