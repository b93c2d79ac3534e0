package openai

import (
	"encoding/json"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// completionEvents sends the pieces of an answer as chunks.
type completionEvents struct {
	completionAnswer
	out *server.EventWriter
	// head is what every chunk begins with.
	head []byte
}

func (e *completionEvents) add(p *completionPiece) error {
	c, req := &e.g.Choices[p.choice], e.req
	b := append(e.out.Buf[:0], e.head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(p.choice), 10)
	b = append(b, `,"text":`...)
	b = wire.AppendString(b, p.text)
	b = append(b, `,"logprobs":`...)
	if req.TopLogprobs != sample.NoLogprobs {
		b = e.s.AppendLogprobs(b, p.scores, e.shown, &req.Sampling)
	} else {
		b = append(b, "null"...)
	}
	b = appendFinish(b, c)
	b = appendStopReason(b, c)
	b = appendTokenIDs(b, "prompt_token_ids", e.g.Prompts[p.choice/e.g.N].Prompt,
		p.first && req.ReturnTokenIDs)
	b = appendTokenIDs(b, "token_ids", p.tokens, req.ReturnTokenIDs)
	b = append(b, "}]"...)
	b = e.s.appendWeightVersion(b, c.Finished)
	if req.ContinuousUsage {
		b = append(b, ',')
		b = e.s.appendUsage(b, e.g.UsageOf(p.choice))
	}
	e.out.Buf = append(b, "}\n\n"...)
	return e.out.Send()
}

// sendUsage sends the last chunk: no choices, the tokens counted, and the times where they are
// asked for.
func (s *API) sendUsage(out *server.EventWriter, head []byte, g *generate.Generation,
	req *generate.Sampling) error {
	b := append(out.Buf[:0], head...)
	b = append(b, "],"...)
	b = s.appendUsage(b, g.Usage())
	if m := g.Metrics(req); m != nil {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		b = append(append(b, `,"metrics":`...), text...)
	}
	out.Buf = append(b, "}\n\n"...)
	return out.Send()
}
