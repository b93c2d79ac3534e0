package wire

import (
	"bytes"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Member is one key of an object with the text of its value.
type Member struct {
	Key string
	Raw []byte
}

// ParseObject checks that body is exactly one JSON object by RFC 8259, nothing repaired: valid
// UTF-8 without a byte order mark, no duplicate keys at any level, no lone surrogates, no NaN,
// nesting and object size bounded. It returns the object's members in order. A fault inside a
// member names that member.
func ParseObject(body []byte, lim Limits) ([]Member, *Error) {
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return nil, BadRequest("", "request body begins with a byte order mark")
	}
	text := bytes.TrimLeft(body, " \t\n\r")
	if len(text) == 0 {
		return nil, BadRequest("", "request body is empty, expected a JSON object")
	}
	if text[0] != '{' {
		return nil, BadRequest("", "request body must be a JSON object")
	}
	var members []Member
	at := ""
	bounds := jsonx.Limits{Bytes: len(body), Depth: lim.JSONDepth, Members: lim.JSONMembers}
	err := jsonx.Read(body, bounds, func(r *jsonx.Reader) error {
		return r.Object(func(key string) error {
			at = key
			raw, err := r.Raw()
			if err != nil {
				return err
			}
			members = append(members, Member{Key: key, Raw: raw})
			at = ""
			return nil
		})
	})
	if err != nil {
		if at != "" {
			return nil, BadRequest(at, "invalid JSON in `%s`: %v", Clip(at), err)
		}
		return nil, BadRequest("", "invalid JSON: %v", err)
	}
	return members, nil
}

// EachElement calls f with the text of every element of a checked array, up to the first error.
func EachElement(raw []byte, f func(i int, raw []byte) *Error) *Error {
	for i, text := range jsonx.Elements(raw) {
		if err := f(i, text); err != nil {
			return err
		}
	}
	return nil
}

// EachMember calls f with every member of a checked object, in order, up to the first error.
func EachMember(raw []byte, f func(key string, raw []byte) *Error) *Error {
	for key, text := range jsonx.Members(raw) {
		if err := f(key, text); err != nil {
			return err
		}
	}
	return nil
}

// Unquote decodes a checked JSON string with its quotes.
func Unquote(raw []byte) string { return jsonx.Unquote(raw) }

// Clip shortens what a client sent before it goes into a message or a log.
func Clip(s string) string { return ClipTo(s, 80) }

// ClipTo shortens a text to so many bytes.
func ClipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// TypeOf is the member type of an object, "" for none.
func TypeOf(raw []byte) string {
	kind := ""
	if raw[0] != '{' {
		return ""
	}
	_ = EachMember(raw, func(key string, raw []byte) *Error {
		if key == "type" && raw[0] == '"' {
			kind = Unquote(raw)
		}
		return nil
	})
	return kind
}

// OrNull is a value, null for none.
func OrNull(raw []byte) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}

// UnquoteOr decodes a checked JSON string, which may not be there.
func UnquoteOr(raw []byte, otherwise string) string {
	if raw == nil {
		return otherwise
	}
	return Unquote(raw)
}

// MemberOf returns a member of an object, nil where there is none that begins so.
func MemberOf(object []byte, name string, begin byte) []byte {
	if len(object) == 0 || object[0] != '{' {
		return nil
	}
	for key, raw := range jsonx.Members(object) {
		if key == name && raw[0] == begin {
			return raw
		}
	}
	return nil
}
