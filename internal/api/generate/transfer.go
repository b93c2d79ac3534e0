package generate

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// transferField is vLLM's for prompts that one server computes and another one goes on from: see
// kvtransfer.Ticket.
const transferField = "kv_transfer_params"

// transferError is the answer to a request whose transfer cannot be: field is within
// kv_transfer_params, "" for all of it.
func transferError(field, reason string) *wire.Error {
	at := transferField
	if field != "" {
		at += "." + field
	}
	return wire.BadRequest(at, "`%s`: %s", at, reason)
}

// DecodeTransfer reads kv_transfer_params. Members that only other servers know are left alone, as
// in vLLM: proxies add them.
func (s *Sampling) DecodeTransfer(f *wire.Fields) {
	raw := f.Object(transferField)
	if raw == nil {
		return
	}
	members := map[string][]byte{}
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		members[key] = raw
		return nil
	}))
	flag := func(name string) bool {
		switch raw := string(members[name]); raw {
		case "", "null", "false":
			return false
		case "true":
			return true
		default:
			f.Fail(transferError(name, "must be a boolean, got "+wire.Describe(members[name])))
			return false
		}
	}
	s.handOver = flag("do_remote_decode")
	prefill := flag("do_remote_prefill")
	switch {
	case f.Err != nil || !prefill:
		return
	case s.handOver:
		f.Fail(transferError("do_remote_decode",
			"cannot be asked for together with do_remote_prefill"))
		return
	}
	for _, name := range []string{"remote_host", "remote_port", "remote_num_tokens",
		"remote_secret", "remote_fingerprint"} {
		if raw := string(members[name]); raw == "" || raw == "null" {
			f.Fail(transferError(name,
				"is missing: kv_transfer_params are those of the answer to a request with "+
					"do_remote_decode"))
			return
		}
	}
	var t kvtransfer.Ticket
	if err := json.Unmarshal(raw, &t); err != nil {
		field := ""
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			field = wrong.Field
		}
		f.Fail(transferError(field, strings.TrimPrefix(err.Error(), "json: ")))
		return
	}
	if t.Port < 1 || t.Port > 65535 {
		f.Fail(transferError("remote_port", "is not a port"))
		return
	}
	s.ticket = &t
}

// CheckTransfer refuses what cannot be handed over, or received, of a request with so many prompts.
func (s *Sampling) CheckTransfer(prompts int) *wire.Error {
	switch {
	case s.ticket == nil && !s.handOver:
		return nil
	case prompts > 1:
		return transferError("", "is for one prompt, there are several")
	case s.Beams != nil:
		return transferError("", "beam search computes its prompt itself")
	case s.handOver && s.Stream:
		return transferError("do_remote_decode", "needs `stream=False`: the answer says where the "+
			"blocks are")
	case s.handOver && s.N > 1:
		return transferError("do_remote_decode", "needs `n=1`")
	}
	return nil
}
