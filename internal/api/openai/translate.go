package openai

import (
	"bytes"
	"strconv"
	"strings"
)

// translation turns the request of another API into one of chat, whose fields decodeChat reads: so
// what chat can do, checks and bounds, the others do too.
type translation struct {
	*fields
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
	t.members[chat] = raw
	t.names[chat] = from
}

// refuse refuses fields of chat that this API has under other names, or not at all (""). It is
// called before set.
func (t *translation) refuse(fields map[string]string) {
	for name, instead := range fields {
		raw := t.take(name)
		switch {
		case raw == nil, isNull(raw), instead == "" && (string(raw) == "false" ||
			string(raw) == "1" && name == "n"):
		case instead == "":
			t.fail(badRequest(name, "`%s` is not supported by %s", name, t.route))
		default:
			t.fail(badRequest(name, "`%s` is for POST %s; this route, %s, takes `%s`", name,
				chatPath, t.route, instead))
		}
	}
}

// chat decodes what was set. An error names the fields of this API.
func (t *translation) chat(m *model) (*chatRequest, *apiError) {
	if t.err != nil {
		return nil, t.err
	}
	req, bad := decodeChat(t.fields, m)
	t.rename(bad)
	return req, bad
}

// rename makes an error name the fields of this API.
func (t *translation) rename(bad *apiError) {
	if bad == nil {
		return
	}
	for chat, from := range t.names {
		if rest, found := strings.CutPrefix(bad.param, chat); found &&
			(rest == "" || rest[0] == '.' || rest[0] == '[') {
			bad.param = from + rest
			if !strings.Contains(chat, "_") {
				chat, from = "`"+chat, "`"+from // a word that may mean itself
			}
			bad.message = strings.ReplaceAll(bad.message, chat, from)
			return
		}
	}
}

// decodeMetadata reads `metadata`: at most 16 pairs of texts.
func decodeMetadata(f *fields) []byte {
	const field = "metadata"
	raw := f.object(field)
	if raw == nil {
		return []byte("{}")
	}
	n := 0
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		n++
		switch {
		case n > 16:
			return badRequest(field, "`metadata` has more than 16 pairs")
		case len([]rune(key)) > 64:
			return badRequest(field, "`metadata` has a key longer than 64 characters: %s", clip(key))
		case raw[0] != '"':
			return badRequest(field, "`metadata.%s` must be a string, got %s", clip(key),
				describe(raw))
		case len([]rune(unquote(raw))) > 512:
			return badRequest(field, "`metadata.%s` is longer than 512 characters", clip(key))
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
