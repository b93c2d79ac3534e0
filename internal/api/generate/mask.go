package generate

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// mask keeps the text of special tokens in what a client wrote from becoming control tokens. A chat
// template mixes the client's text with the model's own markers, and the tokenizer cannot tell them
// apart afterwards; so each such text is taken out of the conversation before rendering, a
// placeholder stands in for it, and when the rendered prompt is tokenised the text comes back as
// ordinary characters.
type mask struct {
	// open begins every placeholder. It holds 64 random bits, so no client can write one.
	open string
	// texts are what the placeholders stand for.
	texts []string
}

// placeholderEnd ends a placeholder; like its beginning it is a private-use character, which no
// template filter in use changes.
const placeholderEnd = "\ue001"

func newMask() *mask {
	var nonce [8]byte
	for i, v := 0, rand.Uint64(); i < len(nonce); i, v = i+1, v>>8 {
		nonce[i] = byte(v)
	}
	return &mask{open: "\ue000" + hex.EncodeToString(nonce[:]) + ":"}
}

// specialTexts finds the texts of special tokens: by first byte, longest first.
type specialTexts [256][]string

func newSpecialTexts(texts []string) *specialTexts {
	var t specialTexts
	for _, s := range texts {
		if s != "" {
			t[s[0]] = append(t[s[0]], s)
		}
	}
	for i := range t {
		slices.SortFunc(t[i], func(a, b string) int { return len(b) - len(a) })
	}
	return &t
}

// match returns the special token that s begins with, "" for none.
func (t *specialTexts) match(s string) string {
	for _, text := range t[s[0]] {
		if strings.HasPrefix(s, text) {
			return text
		}
	}
	return ""
}

// text replaces the special tokens in s.
func (m *mask) text(specials *specialTexts, s string) string {
	var out strings.Builder
	from := 0
	for i := 0; i < len(s); {
		special := specials.match(s[i:])
		if special == "" {
			i++
			continue
		}
		out.WriteString(s[from:i])
		out.WriteString(m.open)
		out.WriteString(strconv.Itoa(m.number(special)))
		out.WriteString(placeholderEnd)
		i += len(special)
		from = i
	}
	if from == 0 {
		return s
	}
	out.WriteString(s[from:])
	return out.String()
}

// number returns the placeholder number of a special token, the same each time.
func (m *mask) number(special string) int {
	if n := slices.Index(m.texts, special); n >= 0 {
		return n
	}
	m.texts = append(m.texts, special)
	return len(m.texts) - 1
}

// json replaces the special tokens in every string of checked JSON text but the keys.
func (m *mask) json(specials *specialTexts, raw []byte) []byte {
	var out []byte
	from := 0
	for start, quoted := range jsonx.Strings(raw) {
		plain := wire.Unquote(quoted)
		masked := m.text(specials, plain)
		if masked == plain {
			continue
		}
		out = append(out, raw[from:start]...)
		out = wire.AppendString(out, masked)
		from = start + len(quoted)
	}
	if from == 0 {
		return raw
	}
	return append(out, raw[from:]...)
}

// split calls f with the pieces of a rendered prompt in order: special is set for a text that must
// stay text.
func (m *mask) split(s string, f func(piece string, special bool)) {
	for len(m.texts) > 0 {
		before, after, found := strings.Cut(s, m.open)
		if !found {
			break
		}
		number, rest, found := strings.Cut(after, placeholderEnd)
		n, err := strconv.Atoi(number)
		if !found || err != nil || n < 0 || n >= len(m.texts) {
			break // a template cut the placeholder; what is left of it is harmless text
		}
		if before != "" {
			f(before, false)
		}
		f(m.texts[n], true)
		s = rest
	}
	if s != "" {
		f(s, false)
	}
}

// restore returns the prompt as it reads.
func (m *mask) restore(s string) string {
	if len(m.texts) == 0 {
		return s
	}
	var out strings.Builder
	m.split(s, func(piece string, _ bool) { out.WriteString(piece) })
	return out.String()
}

// encodeMasked tokenises a rendered prompt. It stops when ctx ends, with its error.
func (s *Service) encodeMasked(ctx context.Context, m *mask, text string,
	addSpecial bool) ([]int32, error) {
	tok := s.Model.Tokenizer
	if len(m.texts) == 0 {
		return tok.EncodeUntil(ctx.Err, text, addSpecial)
	}
	var before, after []int32
	if addSpecial {
		before, after = s.addedAround()
	}
	ids := slices.Clone(before)
	var err error
	m.split(text, func(piece string, special bool) {
		if special {
			ids = append(ids, s.encodePlain(piece)...)
			return
		}
		if err != nil {
			return
		}
		var more []int32
		more, err = tok.EncodeUntil(ctx.Err, piece, false)
		ids = append(ids, more...)
	})
	return append(ids, after...), err
}

// encodePlain tokenises the text of a special token as ordinary characters: cut in two, neither
// half is the token any more.
func (s *Service) encodePlain(text string) []int32 {
	tok := s.Model.Tokenizer
	for cut := 1; cut < len(text); cut++ {
		if !utf8.RuneStart(text[cut]) {
			continue
		}
		ids := append(tok.Encode(text[:cut], false), tok.Encode(text[cut:], false)...)
		if !slices.ContainsFunc(ids, tok.IsSpecial) {
			return ids
		}
	}
	return nil // a special token of one character has no other spelling: it is dropped
}

// addedAround returns what the tokenizer puts before and after a text when special tokens are
// added.
func (s *Service) addedAround() (before, after []int32) {
	tok := s.Model.Tokenizer
	plain, full := tok.Encode("x", false), tok.Encode("x", true)
	for i := 0; i+len(plain) <= len(full); i++ {
		if slices.Equal(full[i:i+len(plain)], plain) {
			return full[:i], full[i+len(plain):]
		}
	}
	return nil, nil
}
