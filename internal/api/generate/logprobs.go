package generate

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Score is one token and how it was chosen.
type Score struct {
	token   int32
	logprob float32
	// known is false for the first token of a prompt, which nothing precedes.
	known bool
	top   []step.TokenLogprob
	rank  int32
	// offset is the length in characters of the text before the token.
	offset int
}

// AppendScores adds the tokens of a delta, which the top lists are shared with.
func AppendScores(scores []Score, c *Choice, d *engine.Delta) []Score {
	for i, id := range d.Tokens {
		s := Score{token: id, known: i < len(d.Logprobs)}
		if s.known {
			l := &d.Logprobs[i]
			s.logprob, s.rank, s.top = l.Sampled.Logprob, l.Sampled.Rank, l.Top
		}
		if i < len(d.RuneOffsets) {
			s.offset = c.EchoedRunes + d.RuneOffsets[i]
		}
		scores = append(scores, s)
	}
	return scores
}

// MergeScores adds scores that outlast their delta.
func MergeScores(kept, scores []Score) []Score {
	for _, s := range scores {
		s.top = slices.Clone(s.top)
		kept = append(kept, s)
	}
	return kept
}

// ScorePrompt notes how the tokens of choice i's prompt would have been chosen, which its first
// delta says, where so many of the most likely are asked for.
func (s *Service) ScorePrompt(g *Generation, i int, d *engine.Delta, asked int32) {
	if c := &g.Choices[i]; asked != sample.NoLogprobs && c.PromptScores == nil {
		c.PromptScores = s.promptScores(g.Prompts[i/g.N].Prompt, d.PromptLogprobs)
	}
}

// promptScores describes the tokens of a prompt.
func (s *Service) promptScores(ids []int32, given []step.Logprobs) []Score {
	scores := make([]Score, len(ids))
	offset := 0
	for i, id := range ids {
		scores[i] = Score{token: id, offset: offset, known: i > 0 && i < len(given)}
		if scores[i].known {
			l := &given[i]
			scores[i].logprob, scores[i].rank = l.Sampled.Logprob, l.Sampled.Rank
			scores[i].top = slices.Clone(l.Top)
		}
		offset += CountRunes(s.tokenText(id, false))
	}
	return scores
}

// tokenText is a token as text, or as "token_id:N" when asked for or without a tokenizer.
func (s *Service) tokenText(id int32, asID bool) string {
	if tok := s.Model.Tokenizer; tok != nil && !asID {
		return string(tok.TokenBytes(id))
	}
	return "token_id:" + strconv.Itoa(int(id))
}

// AppendLogprobs appends the log-probabilities of a completion in the form that it asks for.
func (s *Service) AppendLogprobs(b []byte, scores []Score, shown int, r *Sampling) []byte {
	if r.LogprobsByID {
		return s.AppendLogprobsByID(b, scores, shown)
	}
	return s.appendCompletionLogprobs(b, scores, shown, r.AsTokenIDs)
}

// appendCompletionLogprobs appends the legacy form: four parallel lists. Each top_logprobs entry
// holds the chosen token and the shown most likely ones.
func (s *Service) appendCompletionLogprobs(b []byte, scores []Score, shown int, asID bool) []byte {
	b = append(b, `{"text_offset":[`...)
	for i := range scores {
		b = wire.Comma(b, i)
		b = strconv.AppendInt(b, int64(scores[i].offset), 10)
	}
	b = append(b, `],"token_logprobs":[`...)
	for i := range scores {
		b = wire.Comma(b, i)
		if !scores[i].known {
			b = append(b, "null"...)
			continue
		}
		b = wire.AppendLogprob(b, scores[i].logprob)
	}
	b = append(b, `],"tokens":[`...)
	for i := range scores {
		b = wire.Comma(b, i)
		b = wire.AppendString(b, s.tokenText(scores[i].token, asID))
	}
	b = append(b, `],"top_logprobs":[`...)
	for i := range scores {
		b = wire.Comma(b, i)
		if !scores[i].known {
			b = append(b, "null"...)
			continue
		}
		b = s.appendTopMap(b, &scores[i], shown, asID)
	}
	return append(b, "]}"...)
}

// appendTopMap appends {token: logprob}. Different tokens may have the same text (parts of one
// character): the likelier stays.
func (s *Service) appendTopMap(b []byte, c *Score, shown int, asID bool) []byte {
	seen := map[string]struct{}{s.tokenText(c.token, asID): {}}
	b = append(b, '{')
	b = wire.AppendString(b, s.tokenText(c.token, asID))
	b = append(b, ':')
	b = wire.AppendLogprob(b, c.logprob)
	for _, t := range c.top[:min(shown, len(c.top))] {
		text := s.tokenText(t.Token, asID)
		if _, ok := seen[text]; ok {
			continue
		}
		seen[text] = struct{}{}
		b = append(b, ',')
		b = wire.AppendString(b, text)
		b = append(b, ':')
		b = wire.AppendLogprob(b, t.Logprob)
	}
	return append(b, '}')
}

// AppendChatLogprobs appends the chat form: one object per token, with exactly the shown most
// likely ones.
func (s *Service) AppendChatLogprobs(b []byte, scores []Score, shown int, asID bool) []byte {
	b = append(b, `{"content":[`...)
	b = s.AppendTokenLogprobs(b, scores, shown, asID)
	return append(b, "]}"...)
}

// AppendTokenLogprobs appends the objects of appendChatLogprobs, separated by commas.
func (s *Service) AppendTokenLogprobs(b []byte, scores []Score, shown int, asID bool) []byte {
	for i := range scores {
		b = wire.Comma(b, i)
		c := &scores[i]
		b = s.appendChatToken(b, c.token, c.logprob, asID)
		b = append(b, `,"top_logprobs":[`...)
		for j, t := range c.top[:min(shown, len(c.top))] {
			b = wire.Comma(b, j)
			b = s.appendChatToken(b, t.Token, t.Logprob, asID)
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return b
}

// appendChatToken appends {"token","logprob","bytes" without the closing brace.
func (s *Service) appendChatToken(b []byte, id int32, logprob float32, asID bool) []byte {
	b = append(b, `{"token":`...)
	b = wire.AppendString(b, s.tokenText(id, asID))
	b = append(b, `,"logprob":`...)
	b = wire.AppendLogprob(b, logprob)
	b = append(b, `,"bytes":`...)
	return wire.AppendInts(b, []byte(s.tokenText(id, false)))
}

// AppendLogprobsByID appends vLLM's list of prompt_logprobs: null for the first token of a prompt,
// then {token id: {logprob, rank, decoded_token}} of the token that is there and the shown most
// likely ones.
func (s *Service) AppendLogprobsByID(b []byte, scores []Score, shown int) []byte {
	b = append(b, '[')
	for i := range scores {
		b = wire.Comma(b, i)
		c := &scores[i]
		if !c.known {
			b = append(b, "null"...)
			continue
		}
		b = append(b, '{')
		b = s.appendTokenByID(b, step.TokenLogprob{Token: c.token, Rank: c.rank,
			Logprob: c.logprob})
		for _, t := range c.top[:min(shown, len(c.top))] {
			if t.Token == c.token {
				continue
			}
			b = append(b, ',')
			b = s.appendTokenByID(b, t)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func (s *Service) appendTokenByID(b []byte, t step.TokenLogprob) []byte {
	b = append(b, '"')
	b = strconv.AppendInt(b, int64(t.Token), 10)
	b = append(b, `":{"logprob":`...)
	b = wire.AppendLogprob(b, t.Logprob)
	b = append(b, `,"rank":`...)
	b = strconv.AppendInt(b, int64(t.Rank), 10)
	b = append(b, `,"decoded_token":`...)
	b = wire.AppendString(b, s.tokenText(t.Token, false))
	return append(b, '}')
}

// CountRunes is utf8.RuneCountInString under a shorter name.
func CountRunes[T string | []byte](s T) int { return utf8.RuneCountInString(string(s)) }
