package openai

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// chatBatchPath is vLLM's: many conversations in one request.
const chatBatchPath = chatPath + "/batch"

// chatBatchRequest is the body of it: what all conversations share, and each of them.
type chatBatchRequest struct {
	*chatRequest
	talks []conversation
}

func decodeChatBatch(f *wire.Fields, m *model) (*chatBatchRequest, *wire.Error) {
	list, bad := conversations(f)
	if bad != nil {
		return nil, bad
	}
	req := newChat(m, "messages")
	req.decodeOwn(f, m)
	req.decodeShared(f, m)
	f.Fail(checkBatch(req))
	b := &chatBatchRequest{req, make([]conversation, len(list))}
	for i, raw := range list {
		b.talks[i] = req.conversation
		b.talks[i].decodeMessages(f, raw)
	}
	return b, f.Err
}

// chatBatch answers POST /v1/chat/completions/batch: `messages` is a list of conversations, of which
// each is answered by the choice of its number. What is said of one conversation's prompt is refused.
func (s *completionsAPI) chatBatch(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *chatBatchRequest) error {
	// What all share is rendered with each.
	size := len(req.documents)
	for _, k := range req.kwargs {
		size += len(k.Raw)
	}
	if most := s.cfg.MaxRequestBodyBytes; int64(size*len(req.talks)) > most {
		return wire.BadRequest("chat_template_kwargs", "`documents` and `chat_template_kwargs` of %d bytes for "+
			"%d conversations are more than %d bytes", size, len(req.talks), most)
	}
	g, err := s.startChats(r.Context(), &r.Call, "chatcmpl-", req.chatRequest, req.talks)
	f.Done()
	if err != nil {
		return err
	}
	return s.answerChat(w, r, g, req.chatRequest)
}

// conversations takes the list of them apart.
func conversations(f *wire.Fields) ([][]byte, *wire.Error) {
	raw := f.Array("messages")
	if raw == nil {
		f.Fail(wire.BadRequest("messages", "`messages` must be a list of conversations"))
		return nil, f.Err
	}
	var list [][]byte
	bad := wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		if raw[0] != '[' {
			return wire.BadRequest("messages", "`messages[%d]` must be a list of messages, got %s: one "+
				"conversation is for POST %s", i, wire.Describe(raw), chatPath)
		}
		if len(list) == f.Lim.Prompts {
			return wire.BadRequest("messages", "`messages` has more than %d conversations", f.Lim.Prompts)
		}
		list = append(list, raw)
		return nil
	})
	if bad == nil && len(list) == 0 {
		bad = wire.BadRequest("messages", "`messages` must not be empty")
	}
	return list, bad
}

// checkBatch refuses what vLLM refuses, and what has room for one prompt only.
func checkBatch(r *chatRequest) *wire.Error {
	for name, asked := range map[string]bool{"stream": r.stream, "n": r.n != 1, "use_beam_search": r.beams != nil,
		"tools": r.tools != nil,
		"echo":  r.echo, "prompt_logprobs": r.promptLogprobs != sample.NoLogprobs,
		"return_prompt_text": r.returnPromptText, "return_token_ids": r.returnTokenIDs} {
		if asked {
			return wire.BadRequest(name, "`%s` is not for a batch of conversations", name)
		}
	}
	return nil
}
