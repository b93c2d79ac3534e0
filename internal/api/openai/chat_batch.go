package openai

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// ChatBatchPath is vLLM's: many conversations in one request.
const ChatBatchPath = ChatPath + "/batch"

// chatBatchRequest is the body of it: what all conversations share, and each of them.
type chatBatchRequest struct {
	*generate.Chat
	talks []generate.Conversation
}

func decodeChatBatch(f *wire.Fields, m *generate.Model) (*chatBatchRequest, *wire.Error) {
	list, bad := conversations(f)
	if bad != nil {
		return nil, bad
	}
	req := generate.NewChat("messages")
	decodeOwn(req, f, m)
	req.DecodeShared(f, m)
	f.Fail(checkBatch(req))
	b := &chatBatchRequest{req, make([]generate.Conversation, len(list))}
	for i, raw := range list {
		b.talks[i] = req.Conversation
		decodeMessages(&b.talks[i], f, raw)
	}
	return b, f.Err
}

// chatBatch answers POST /v1/chat/completions/batch: `messages` is a list of conversations, of
// which each is answered by the choice of its number. What is said of one conversation's prompt is
// refused.
func (s *API) chatBatch(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *chatBatchRequest) error {
	// What all share is rendered with each.
	size := len(req.Documents)
	for _, k := range req.Kwargs {
		size += len(k.Raw)
	}
	if most := s.cfg.MaxRequestBodyBytes; int64(size*len(req.talks)) > most {
		return wire.BadRequest("chat_template_kwargs",
			"`documents` and `chat_template_kwargs` of %d bytes for %d conversations are more "+
				"than %d bytes", size, len(req.talks), most)
	}
	g, err := s.StartChats(r.Context(), &r.Call, "chatcmpl-", req.Chat, req.talks)
	f.Done()
	if err != nil {
		return err
	}
	return s.answerChat(w, r, g, req.Chat)
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
			return wire.BadRequest("messages",
				"`messages[%d]` must be a list of messages, got %s: one conversation is for "+
					"POST %s", i, wire.Describe(raw), ChatPath)
		}
		if len(list) == f.Lim.Prompts {
			return wire.BadRequest("messages", "`messages` has more than %d conversations",
				f.Lim.Prompts)
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
func checkBatch(r *generate.Chat) *wire.Error {
	for name, asked := range map[string]bool{
		"stream":             r.Stream,
		"n":                  r.N != 1,
		"use_beam_search":    r.Beams != nil,
		"tools":              r.Tools != nil,
		"echo":               r.Echo,
		"prompt_logprobs":    r.TopPromptLogprobs != sample.NoLogprobs,
		"return_prompt_text": r.ReturnPromptText,
		"return_token_ids":   r.ReturnTokenIDs,
	} {
		if asked {
			return wire.BadRequest(name, "`%s` is not for a batch of conversations", name)
		}
	}
	return nil
}
