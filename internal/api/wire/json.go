package openai

import (
	"bytes"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// member is one key of an object with the text of its value.
type member struct {
	key string
	raw []byte
}

// parseObject checks that body is exactly one JSON object by RFC 8259, nothing repaired: valid
// UTF-8 without a byte order mark, no duplicate keys at any level, no lone surrogates, no NaN,
// nesting and object size bounded. It returns the object's members in order. A fault inside a
// member names that member.
func parseObject(body []byte, lim Limits) ([]member, *apiError) {
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return nil, badRequest("", "request body begins with a byte order mark")
	}
	text := bytes.TrimLeft(body, " \t\n\r")
	if len(text) == 0 {
		return nil, badRequest("", "request body is empty, expected a JSON object")
	}
	if text[0] != '{' {
		return nil, badRequest("", "request body must be a JSON object")
	}
	var members []member
	at := ""
	bounds := jsonx.Limits{Bytes: len(body), Depth: lim.JSONDepth, Members: lim.JSONMembers}
	err := jsonx.Read(body, bounds, func(r *jsonx.Reader) error {
		return r.Object(func(key string) error {
			at = key
			raw, err := r.Raw()
			if err != nil {
				return err
			}
			members = append(members, member{key: key, raw: raw})
			at = ""
			return nil
		})
	})
	if err != nil {
		if at != "" {
			return nil, badRequest(at, "invalid JSON in `%s`: %v", clip(at), err)
		}
		return nil, badRequest("", "invalid JSON: %v", err)
	}
	return members, nil
}

// eachElement calls f with the text of every element of a checked array, up to the first error.
func eachElement(raw []byte, f func(i int, raw []byte) *apiError) *apiError {
	for i, text := range jsonx.Elements(raw) {
		if err := f(i, text); err != nil {
			return err
		}
	}
	return nil
}

// eachMember calls f with every member of a checked object, in order, up to the first error.
func eachMember(raw []byte, f func(key string, raw []byte) *apiError) *apiError {
	for key, text := range jsonx.Members(raw) {
		if err := f(key, text); err != nil {
			return err
		}
	}
	return nil
}

// unquote decodes a checked JSON string with its quotes.
func unquote(raw []byte) string { return jsonx.Unquote(raw) }

// clip shortens what a client sent before it goes into a message or a log.
func clip(s string) string { return clipTo(s, 80) }

// clipTo shortens a text to so many bytes.
func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// typeOf is the member type of an object, "" for none.
func typeOf(raw []byte) string {
	kind := ""
	if raw[0] != '{' {
		return ""
	}
	_ = eachMember(raw, func(key string, raw []byte) *apiError {
		if key == "type" && raw[0] == '"' {
			kind = unquote(raw)
		}
		return nil
	})
	return kind
}

// orNull is a value, null for none.
func orNull(raw []byte) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}

// unquoteOr decodes a checked JSON string, which may not be there.
func unquoteOr(raw []byte, otherwise string) string {
	if raw == nil {
		return otherwise
	}
	return unquote(raw)
}
