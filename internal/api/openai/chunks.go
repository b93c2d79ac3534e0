package openai

import (
	"strconv"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// chunkHead is what every event of a stream begins with.
func chunkHead(g *generation, object string) []byte {
	b := append([]byte(nil), `data: {"id":`...)
	b = wire.AppendString(b, g.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	b = append(b, `,"model":`...)
	b = wire.AppendString(b, g.model)
	return append(b, `,"choices":[`...)
}

// appendFinish appends finish_reason, null while running.
func appendFinish(b []byte, c *choice) []byte {
	b = append(b, `,"finish_reason":`...)
	if !c.finished {
		return append(b, "null"...)
	}
	return wire.AppendString(b, c.finishReason())
}

// appendStopReason appends stop_reason: a stop string, a stop token, or null.
func appendStopReason(b []byte, c *choice) []byte {
	b = append(b, `,"stop_reason":`...)
	switch {
	case c.finish == sample.FinishRepetition:
		return wire.AppendString(b, repetitionDetected)
	case c.stopString != "":
		return wire.AppendString(b, c.stopString)
	case c.finished && c.stopToken >= 0:
		return strconv.AppendInt(b, int64(c.stopToken), 10)
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
func (s *completionsAPI) appendUsage(b []byte, u usage) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.output), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.output), 10)
	if s.cfg.EnablePromptTokensDetails {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		b = append(b, '}')
	}
	if u.reasons {
		b = append(b, `,"completion_tokens_details":{"reasoning_tokens":`...)
		b = strconv.AppendInt(b, int64(u.reasoning), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

func (s *completionsAPI) usageInfo(u usage) usageInfo {
	info := usageInfo{PromptTokens: u.prompt, TotalTokens: u.prompt + u.output,
		CompletionTokens: u.output}
	if s.cfg.EnablePromptTokensDetails {
		info.PromptTokensDetails = &promptTokensDetails{CachedTokens: u.cached}
	}
	if u.reasons {
		info.CompletionTokensDetails = &completionTokensDetails{ReasoningTokens: u.reasoning}
	}
	return info
}

// appendWeightVersion gives the last chunk of a choice the version of the weights.
func (s *completionsAPI) appendWeightVersion(b []byte, last bool) []byte {
	if !last {
		return b
	}
	v := s.WeightVersion()
	if v == "" {
		return b
	}
	return wire.AppendString(append(b, `,"weight_version":`...), v)
}
