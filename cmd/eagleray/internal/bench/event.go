package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// event is what a benchmark needs of one event of a streamed answer, of either endpoint.
type event struct {
	// piece tells that the event carries output: it has a choice that is more than the role which
	// opens a chat.
	piece bool
	text  string
	// prompt and output are the usage, when the event has one.
	usage          bool
	prompt, output int
	// failure is the message of an error event.
	failure string
}

// parseEvent reads one event. Client and server usually share the machine that is measured, so this
// looks only at the members that matter and decodes nothing else: an eighth of the time
// encoding/json takes.
func parseEvent(raw []byte) (event, error) {
	var e event
	s := scanner{b: raw}
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "choices":
			return s.array(func(i int) error {
				if i > 0 {
					return s.skip()
				}
				return e.choice(&s)
			})
		case "usage":
			if s.peek() != '{' {
				return s.skip()
			}
			e.usage = true
			return s.object(func(key []byte) error {
				switch string(key) {
				case "prompt_tokens":
					return s.int(&e.prompt)
				case "completion_tokens":
					return s.int(&e.output)
				}
				return s.skip()
			})
		case "error":
			return e.fail(&s)
		}
		return s.skip()
	})
	if err == nil && s.peek() != 0 {
		err = errSyntax
	}
	if err != nil {
		return event{}, fmt.Errorf("event %.200q: %w", raw, err)
	}
	return e, nil
}

func (e *event) choice(s *scanner) error {
	role, finished := false, false
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "text":
			return s.text(&e.text)
		case "finish_reason":
			finished = s.peek() == '"'
		case "delta":
			if s.peek() != '{' {
				return s.skip()
			}
			return s.object(func(key []byte) error {
				switch string(key) {
				case "content":
					return s.text(&e.text)
				case "role":
					role = true
				}
				return s.skip()
			})
		}
		return s.skip()
	})
	e.piece = e.text != "" || finished || !role
	return err
}

func (e *event) fail(s *scanner) error {
	if s.peek() != '{' {
		return s.skip()
	}
	e.failure = "unknown error"
	return s.object(func(key []byte) error {
		if string(key) == "message" {
			return s.text(&e.failure)
		}
		return s.skip()
	})
}

var errSyntax = errors.New("not the JSON of an event")

// scanner walks over JSON text. It checks what it needs to find its way, and no more.
type scanner struct {
	b  []byte
	at int
}

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.b); s.at++ {
		switch c := s.b[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) accept(c byte) error {
	if s.peek() != c {
		return errSyntax
	}
	s.at++
	return nil
}

// object calls member with each key; it must consume the value. The key is valid until then.
func (s *scanner) object(member func(key []byte) error) error {
	if err := s.accept('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.at++
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.accept(':'); err != nil {
			return err
		}
		if err := member(key[1 : len(key)-1]); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.at++
			continue
		}
		return s.accept('}')
	}
}

// array calls element with each index; it must consume the element.
func (s *scanner) array(element func(i int) error) error {
	if err := s.accept('['); err != nil {
		return err
	}
	if s.peek() == ']' {
		s.at++
		return nil
	}
	for i := 0; ; i++ {
		if err := element(i); err != nil {
			return err
		}
		if s.peek() == ',' {
			s.at++
			continue
		}
		return s.accept(']')
	}
}

// str consumes a string and returns it with its quotes, escapes and all.
func (s *scanner) str() ([]byte, error) {
	if s.peek() != '"' {
		return nil, errSyntax
	}
	from := s.at
	for i := from + 1; i < len(s.b); i++ {
		switch s.b[i] {
		case '\\':
			i++
		case '"':
			s.at = i + 1
			return s.b[from:s.at], nil
		}
	}
	return nil, errSyntax
}

// text consumes a string, or null for "".
func (s *scanner) text(dst *string) error {
	if s.peek() != '"' {
		return s.skip()
	}
	quoted, err := s.str()
	if err != nil {
		return err
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		*dst = string(quoted[1 : len(quoted)-1])
		return nil
	}
	return json.Unmarshal(quoted, dst)
}

func (s *scanner) int(dst *int) error {
	s.peek()
	from := s.at
	if err := s.skip(); err != nil {
		return err
	}
	n, err := strconv.Atoi(string(s.b[from:s.at]))
	if err != nil {
		return errSyntax
	}
	*dst = n
	return nil
}

// skip consumes any value. Nesting is counted, not followed, so depth costs nothing.
func (s *scanner) skip() error {
	depth := 0
	for {
		switch c := s.peek(); c {
		case 0:
			return errSyntax
		case '"':
			if _, err := s.str(); err != nil {
				return err
			}
		case '{', '[':
			depth++
			s.at++
			continue
		case '}', ']':
			if depth == 0 {
				return errSyntax
			}
			depth--
			s.at++
		case ',', ':':
			if depth == 0 {
				return errSyntax
			}
			s.at++
			continue
		default:
			for s.at < len(s.b) && !ends(s.b[s.at]) {
				s.at++
			}
		}
		if depth == 0 {
			return nil
		}
	}
}

// ends tells whether a byte ends a number or a word.
func ends(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '\r', ',', ':', '"', '{', '}', '[', ']':
		return true
	}
	return false
}
