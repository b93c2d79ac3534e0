package generate

import (
	"context"
	"encoding/json"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatPrompt is the prompt that the model's chat template makes of a conversation, as a request to
// /v1/chat/completions with these messages has it. The error says what a client would read.
func (s *Service) ChatPrompt(messages []Message) ([]int32, error) {
	c := Conversation{AddGenerationPrompt: true, Field: "messages"}
	for _, m := range messages {
		raw, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		c.Messages = append(c.Messages, raw)
	}
	p, bad := s.Render(context.Background(), &c, &Sampling{})
	if bad != nil {
		return nil, bad
	}
	return p.Prompt, nil
}
