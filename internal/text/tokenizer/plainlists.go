package tokenizer

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// The vocabulary and the merges are nearly all of a tokenizer.json, and jsonx spends more on each
// of their some 450,000 values than the tables need. They are read here where they are written as
// everybody writes them, and jsonx reads the rest with empty lists in their place. Whatever is
// unusual or wrong, here or there, is left to jsonx: it reads the whole text then, and has the
// error.

// parsePlain is parseWhole for a text whose model has a vocabulary by name and, after it, merges if
// any.
func parsePlain(data []byte) (f *file, ok bool) {
	s := listScanner{data: data}
	if !s.members(s.topMember) || s.vocab == nil {
		return nil, false
	}
	rest := append(slices.Clone(data[:s.vocabAt]), "{}"...)
	if s.merges == nil {
		rest = append(rest, data[s.vocabEnd:]...)
	} else {
		rest = append(rest, data[s.vocabEnd:s.mergesAt]...)
		rest = append(append(rest, "[]"...), data[s.mergesEnd:]...)
	}
	f, err := parseWhole(rest)
	if err != nil {
		return nil, false
	}
	f.model.vocab, f.model.pairs = s.vocab, s.merges
	return f, true
}

// listScanner reads the long lists of a text, whose other values it skips without a check. A method
// that returns false has met something for jsonx.
type listScanner struct {
	data                []byte
	at                  int
	scratch             []byte // a text with escapes, without them
	vocab               *vocabulary
	merges              []mergePair
	vocabAt, vocabEnd   int
	mergesAt, mergesEnd int
}

// mergePair are the tokens of one merge.
type mergePair struct{ left, right int32 }

// next returns the byte after white space, 0 at the end.
func (s *listScanner) next() byte {
	const spaces = 0x2020202020202020
	d, at := s.data, s.at
	for at < len(d) {
		c := d[at]
		if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			s.at = at
			return c
		}
		for at++; at+8 <= len(d) && binary.LittleEndian.Uint64(d[at:]) == spaces; {
			at += 8
		}
	}
	s.at = at
	return 0
}

// expect reads one byte after white space.
func (s *listScanner) expect(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// more reads the comma between two elements, or the bracket that ends them.
func (s *listScanner) more(end byte) (more, ok bool) {
	c := s.next()
	s.at++
	return c == ',', c == ',' || c == end
}

// members reads an object; member reads what follows a name and its colon.
func (s *listScanner) members(member func(name []byte) bool) bool {
	if !s.expect('{') {
		return false
	}
	if s.next() == '}' {
		s.at++
		return true
	}
	for more, ok := true, true; more; {
		name, _, plain := s.text()
		if !plain || !s.expect(':') || !member(name) {
			return false
		}
		if more, ok = s.more('}'); !ok {
			return false
		}
	}
	return true
}

func (s *listScanner) topMember(name []byte) bool {
	if string(name) != "model" {
		return s.skip()
	}
	return s.members(s.modelMember)
}

func (s *listScanner) modelMember(name []byte) bool {
	switch c := s.next(); {
	case string(name) == "vocab" && c == '{' && s.vocab == nil:
		s.vocabAt = s.at
		ok := s.readVocabulary()
		s.vocabEnd = s.at
		return ok
	case string(name) == "merges" && c == '[' && s.merges == nil:
		s.mergesAt = s.at
		ok := s.vocab != nil && s.readMerges()
		s.mergesEnd = s.at
		return ok
	}
	return s.skip()
}

// text reads a string, and returns what is between its quotes, or false for one that is no JSON. A
// text with escapes is resolved, in memory that the next one uses again. ascii says that it was
// written in ASCII.
func (s *listScanner) text() (text []byte, ascii, ok bool) {
	if s.next() != '"' {
		return nil, false, false
	}
	start := s.at
	seen := byte(0)
	for i := start + 1; i < len(s.data); i++ {
		c := s.data[i]
		switch {
		case c == '"':
			s.at = i + 1
			return s.data[start+1 : i], seen < utf8.RuneSelf, true
		case c < ' ':
			return nil, false, false
		case c == '\\':
			return s.escaped(start)
		}
		seen |= c
	}
	return nil, false, false
}

// escaped is text for a string with escapes.
func (s *listScanner) escaped(start int) (text []byte, ascii, ok bool) {
	s.at = start
	if !s.skipText() {
		return nil, false, false
	}
	err := jsonx.Read(s.data[start:s.at], jsonx.Limits{}, func(r *jsonx.Reader) (err error) {
		s.scratch, err = r.AppendText(s.scratch[:0])
		return err
	})
	return s.scratch, false, err == nil
}

// skipText goes to the end of the string that begins here.
func (s *listScanner) skipText() bool {
	for i := s.at + 1; i < len(s.data); i++ {
		switch s.data[i] {
		case '\\':
			i++
		case '"':
			s.at = i + 1
			return true
		}
	}
	return false
}

// skip goes to the end of a value.
func (s *listScanner) skip() bool {
	for depth := 0; ; {
		switch c := s.next(); c {
		case 0:
			return false
		case '"':
			if !s.skipText() {
				return false
			}
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
		case ',', ':':
			s.at++
			continue
		default:
			for s.at < len(s.data) && bytes.IndexByte([]byte(" \t\r\n,]}"), s.data[s.at]) < 0 {
				s.at++
			}
		}
		if depth <= 0 {
			return depth == 0
		}
	}
}

// readVocabulary reads {"token": id, …}.
func (s *listScanner) readVocabulary() bool {
	left := len(s.data) - s.at
	block := make([]byte, 0, left/6)
	ends, ids := make([]uint32, 0, left/64), make([]int32, 0, left/64)
	s.at++
	for more, ok := true, true; more; {
		token, ascii, isText := s.text()
		if !isText || !ascii && !utf8.Valid(token) || !s.expect(':') {
			return false
		}
		id, isID := s.natural()
		if !isID || len(ids) == maxVocabulary {
			return false
		}
		block = append(block, token...)
		ends, ids = append(ends, uint32(len(block))), append(ids, id)
		if more, ok = s.more('}'); !ok {
			return false
		}
	}
	v, err := newVocabulary(string(block), ends, ids)
	s.vocab = v
	return err == nil
}

// natural reads an id.
func (s *listScanner) natural() (n int32, ok bool) {
	s.next()
	start := s.at
	for ; s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9'; s.at++ {
		if n = 10*n + int32(s.data[s.at]-'0'); n >= maxVocabulary {
			return 0, false
		}
	}
	digits := s.at - start
	return n, digits == 1 || digits > 1 && s.data[start] != '0'
}

// readMerges reads ["a b", …] or [["a", "b"], …]. Tokens that are in the vocabulary are UTF-8.
func (s *listScanner) readMerges() bool {
	s.at++
	s.merges = make([]mergePair, 0, len(s.vocab.text))
	for more, ok := true, true; more; {
		var pair mergePair
		switch s.next() {
		case '[':
			s.at++
			if pair.left, ok = s.part(); !ok || !s.expect(',') {
				return false
			}
			if pair.right, ok = s.part(); !ok || !s.expect(']') {
				return false
			}
		case '"':
			line, _, _ := s.text()
			cut := bytes.IndexByte(line, ' ')
			if cut < 0 || bytes.IndexByte(line[cut+1:], ' ') >= 0 ||
				bytes.HasPrefix(line, []byte("#version")) {
				return false
			}
			var isLeft, isRight bool
			pair.left, isLeft = s.vocab.id(string(line[:cut]))
			pair.right, isRight = s.vocab.id(string(line[cut+1:]))
			if !isLeft || !isRight {
				return false
			}
		default:
			return false
		}
		s.merges = append(s.merges, pair)
		if more, ok = s.more(']'); !ok {
			return false
		}
	}
	return true
}

// part reads a token of a merge.
func (s *listScanner) part() (id int32, ok bool) {
	token, _, ok := s.text()
	if !ok {
		return 0, false
	}
	return s.vocab.id(string(token))
}
