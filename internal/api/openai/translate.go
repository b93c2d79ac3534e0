package openai

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// translation turns the request of another API into one of chat, whose fields decodeChat reads: so
// what chat can do, checks and bounds, the others do too.
type translation struct {
	*wire.Fields
	// route is the other API's.
	route string
	// names are the fields of chat that were set, with those that they come from, for errors.
	names map[string]string
}

// set gives a field of chat its value, which comes from the field from.
func (t *translation) set(chat string, raw []byte, from string) {
	if raw == nil {
		return
	}
	t.Members[chat] = raw
	t.names[chat] = from
}

// refuse refuses fields of chat that this API has under other names, or not at all (""). It is
// called before set.
func (t *translation) refuse(fields map[string]string) {
	for name, instead := range fields {
		raw := t.Take(name)
		switch {
		case raw == nil, wire.IsNull(raw), instead == "" && (string(raw) == "false" ||
			string(raw) == "1" && name == "n"):
		case instead == "":
			t.Fail(wire.BadRequest(name, "`%s` is not supported by %s", name, t.route))
		default:
			t.Fail(wire.BadRequest(name, "`%s` is for POST %s; this route, %s, takes `%s`", name,
				chatPath, t.route, instead))
		}
	}
}

// chat decodes what was set. An error names the fields of this API.
func (t *translation) chat(m *model) (*chatRequest, *wire.Error) {
	if t.Err != nil {
		return nil, t.Err
	}
	req, bad := decodeChat(t.Fields, m)
	t.rename(bad)
	return req, bad
}

// rename makes an error name the fields of this API.
func (t *translation) rename(bad *wire.Error) {
	if bad == nil {
		return
	}
	for chat, from := range t.names {
		if rest, found := strings.CutPrefix(bad.Param, chat); found &&
			(rest == "" || rest[0] == '.' || rest[0] == '[') {
			bad.Param = from + rest
			if !strings.Contains(chat, "_") {
				chat, from = "`"+chat, "`"+from // a word that may mean itself
			}
			bad.Message = strings.ReplaceAll(bad.Message, chat, from)
			return
		}
	}
}

// decodeMetadata reads `metadata`: at most 16 pairs of texts.
func decodeMetadata(f *wire.Fields) []byte {
	const field = "metadata"
	raw := f.Object(field)
	if raw == nil {
		return []byte("{}")
	}
	n := 0
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		n++
		switch {
		case n > 16:
			return wire.BadRequest(field, "`metadata` has more than 16 pairs")
		case len([]rune(key)) > 64:
			return wire.BadRequest(field, "`metadata` has a key longer than 64 characters: %s", wire.Clip(key))
		case raw[0] != '"':
			return wire.BadRequest(field, "`metadata.%s` must be a string, got %s", wire.Clip(key),
				wire.Describe(raw))
		case len([]rune(wire.Unquote(raw))) > 512:
			return wire.BadRequest(field, "`metadata.%s` is longer than 512 characters", wire.Clip(key))
		}
		return nil
	}))
	return bytes.Clone(raw)
}

// shortest is the number with the fewest digits that is this float32.
func shortest(v float32) float64 {
	d, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64) // always a number
	return d
}
