package openai

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/chattemplate"
	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/tokenizer"
)

// Model is what the server knows of the model it serves.
type Model struct {
	// Names are the names clients may ask for, at least one; the first is the default.
	Names []string
	// Root is the model's path or repository, shown by /v1/models.
	Root string
	// Tokenizer is nil when the server runs without one (--skip-tokenizer-init): then prompts are token ids and
	// outputs too.
	Tokenizer *tokenizer.Tokenizer
	// Template renders chat messages; nil refuses chat requests.
	Template *chattemplate.Template
	// SpecialTokens are given to the template by their names in tokenizer_config.json: bos_token, eos_token, ….
	SpecialTokens map[string]string
	// Defaults are what requests start from.
	sample.Defaults
	// MaxLogprobs is the most log-probabilities a client may ask for per token; -1 is no limit.
	MaxLogprobs int
	// Created is the Unix time shown by /v1/models.
	Created int64
	// TrustRequestChatTemplate lets clients send a chat template of their own.
	TrustRequestChatTemplate bool
}

// check finds what would otherwise fail a request at a time.
func (m *Model) check() error {
	if len(m.Names) == 0 {
		return fmt.Errorf("model has no served name")
	}
	if m.MaxModelLen < 2 {
		return fmt.Errorf("max model length %d leaves no room for a prompt and an output", m.MaxModelLen)
	}
	if m.VocabSize < 1 || m.VocabSize > math.MaxInt32 {
		return fmt.Errorf("vocabulary size %d is not possible", m.VocabSize)
	}
	if int(m.EOS) >= m.VocabSize {
		return fmt.Errorf("end-of-sequence token %d is outside the vocabulary of %d", m.EOS, m.VocabSize)
	}
	if m.MaxLogprobs < -1 {
		return fmt.Errorf("max logprobs %d is neither -1 nor a count", m.MaxLogprobs)
	}
	for _, id := range m.StopTokens {
		if id < 0 || int(id) >= m.VocabSize {
			return fmt.Errorf("generation config: stop token %d is outside the vocabulary of %d", id, m.VocabSize)
		}
	}
	if n := m.Generation.MaxTokens; n != nil && *n < 1 {
		return fmt.Errorf("generation config: max_new_tokens %d is below 1", *n)
	}
	s := sampling{Overrides: sample.Overrides{Settings: m.Generation}}
	if err := s.checkRanges(); err != nil {
		return fmt.Errorf("generation config: %w", err)
	}
	return nil
}

// maxLogprobs is the most log-probabilities per token.
func (m *Model) maxLogprobs() int {
	if m.MaxLogprobs == -1 {
		return m.VocabSize
	}
	return m.MaxLogprobs
}

// serves reports whether name is one of the model's.
func (m *Model) serves(name string) bool {
	for _, n := range m.Names {
		if n == name {
			return true
		}
	}
	return false
}
