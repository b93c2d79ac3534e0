package openai

import (
	"net/http"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/output"
)

// chatBatchPath is vLLM's: many conversations in one request.
const chatBatchPath = chatPath + "/batch"

// chatBatchRequest is the body of it: what all conversations share, and each as it came.
type chatBatchRequest struct {
	*chatRequest
	list [][]byte
}

func decodeChatBatch(f *wire.Fields, m *model) (*chatBatchRequest, *wire.Error) {
	list, bad := conversations(f)
	if bad != nil {
		return nil, bad
	}
	f.Members["messages"] = list[0]
	req, bad := decodeChat(f, m)
	if bad == nil {
		bad = req.checkBatch()
	}
	return &chatBatchRequest{req, list}, bad
}

// chatBatch answers POST /v1/chat/completions/batch: `messages` is a list of conversations, of which
// each is answered by the choice of its number. What is said of one conversation's prompt is refused.
func (s *API) chatBatch(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *chatBatchRequest) error {
	// What all share is rendered with each.
	list, size := req.list, len(req.documents)
	for _, k := range req.kwargs {
		size += len(k.Raw)
	}
	if most := s.opt.Config.Server.MaxRequestBodyBytes; int64(size*len(list)) > most {
		return wire.BadRequest("chat_template_kwargs", "`documents` and `chat_template_kwargs` of %d bytes for "+
			"%d conversations are more than %d bytes", size, len(list), most)
	}
	g, err := s.startBatch(r, f, req.chatRequest, list)
	f.Done()
	if err != nil {
		return err
	}
	defer g.closeReaders()
	return s.fullChat(w, r, g, req.chatRequest, "")
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
func (r *chatRequest) checkBatch() *wire.Error {
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

// startBatch renders and submits all conversations.
func (s *API) startBatch(r *server.Request, f *wire.Fields, req *chatRequest,
	list [][]byte) (*generation, error) {
	var bad *wire.Error
	if req.model, bad = s.checkModel(req.model); bad != nil {
		return nil, bad
	}
	if bad = s.checkPriority(&req.sampling); bad != nil {
		return nil, bad
	}
	base, bad := s.params(&req.sampling, defaultChatTokens)
	if bad != nil {
		return nil, bad
	}
	shared := req.conversation
	prompts, readings := make([]prompt, len(list)), make([]output.Options, len(list))
	for i, raw := range list {
		req.conversation = shared
		req.messages = nil
		f.Members["messages"] = raw
		if req.decodeMessages(f); f.Err != nil {
			return nil, f.Err
		}
		p, bad := s.render(r.Context(), &req.conversation, &req.sampling)
		if err := call.Ended(r.Context()); err != nil {
			return nil, err
		}
		if bad == nil {
			readings[i], bad = s.reading(r.Context(), r.Origin, req, p.text)
		}
		if bad != nil {
			return nil, bad
		}
		p.text = ""
		if bad = s.fit(&p, &req.sampling, base, "messages"); bad != nil {
			return nil, bad
		}
		prompts[i] = p
	}
	req.forget()
	g, err := s.start(r, "chatcmpl-", &req.sampling, prompts)
	if err != nil {
		return nil, err
	}
	for i, o := range readings {
		if o.Reasoning != nil {
			g.choices[i].readBy(o)
		}
	}
	return g, nil
}
