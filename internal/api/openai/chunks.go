package openai

import (
	"strconv"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// chunkHead is what every event of a stream begins with.
func chunkHead(g *generate.Generation, object string) []byte {
	b := append([]byte(nil), `data: {"id":`...)
	b = wire.AppendString(b, g.ID)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, g.Created, 10)
	b = append(b, `,"model":`...)
	b = wire.AppendString(b, g.Model)
	return append(b, `,"choices":[`...)
}

// appendFinish appends finish_reason, null while running.
func appendFinish(b []byte, c *generate.Choice) []byte {
	b = append(b, `,"finish_reason":`...)
	if !c.Finished {
		return append(b, "null"...)
	}
	return wire.AppendString(b, c.FinishReason())
}

// appendStopReason appends stop_reason: a stop string, a stop token, or null.
func appendStopReason(b []byte, c *generate.Choice) []byte {
	b = append(b, `,"stop_reason":`...)
	switch {
	case c.Finish == sample.FinishRepetition:
		return wire.AppendString(b, generate.RepetitionDetected)
	case c.StopString != "":
		return wire.AppendString(b, c.StopString)
	case c.Finished && c.StopToken >= 0:
		return strconv.AppendInt(b, int64(c.StopToken), 10)
	}
	return append(b, "null"...)
}

// appendTokenIDs appends a member with a list of ids, or null.
func appendTokenIDs(b []byte, name string, ids []int32, on bool) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	if !on {
		return append(b, "null"...)
	}
	return wire.AppendInts(b, ids)
}

// appendUsage appends the usage object.
func (s *API) appendUsage(b []byte, u generate.Usage) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Prompt+u.Output), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.Output), 10)
	if s.cfg.EnablePromptTokensDetails {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.Cached), 10)
		b = append(b, '}')
	}
	if u.Reasons {
		b = append(b, `,"completion_tokens_details":{"reasoning_tokens":`...)
		b = strconv.AppendInt(b, int64(u.Reasoning), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

func (s *API) usageInfo(u generate.Usage) wire.UsageInfo {
	info := wire.UsageInfo{PromptTokens: u.Prompt, TotalTokens: u.Prompt + u.Output,
		CompletionTokens: u.Output}
	if s.cfg.EnablePromptTokensDetails {
		info.PromptTokensDetails = &wire.PromptTokensDetails{CachedTokens: u.Cached}
	}
	if u.Reasons {
		info.CompletionTokensDetails = &wire.CompletionTokensDetails{ReasoningTokens: u.Reasoning}
	}
	return info
}

// appendWeightVersion gives the last chunk of a choice the version of the weights.
func (s *API) appendWeightVersion(b []byte, last bool) []byte {
	if !last {
		return b
	}
	v := s.WeightVersion()
	if v == "" {
		return b
	}
	return wire.AppendString(append(b, `,"weight_version":`...), v)
}
