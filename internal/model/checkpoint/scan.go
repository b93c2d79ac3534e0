package checkpoint

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// scanner reads the subset of JSON that a safetensors header and a weight map consist of. encoding/json is not used
// for them because it silently keeps the last of two equal keys and builds values of any depth.
type scanner struct {
	src []byte
	pos int
}

// next skips white space and returns the byte that follows without consuming it, or 0 at the end.
func (s *scanner) next() byte {
	for s.pos < len(s.src) {
		switch c := s.src[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// expect consumes the byte c.
func (s *scanner) expect(c byte) error {
	if got := s.next(); got != c {
		return s.unexpected(got, fmt.Sprintf("%q", c))
	}
	s.pos++
	return nil
}

func (s *scanner) unexpected(got byte, want string) error {
	if s.pos >= len(s.src) {
		return fmt.Errorf("ends where %s is expected", want)
	}
	return fmt.Errorf("%q at byte %d where %s is expected", got, s.pos, want)
}

// list calls item for every comma-separated item between the bytes open and closing.
func (s *scanner) list(open, closing byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.next() == closing {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch c := s.next(); c {
		case ',':
			s.pos++
		case closing:
			s.pos++
			return nil
		default:
			return s.unexpected(c, fmt.Sprintf("',' or %q", closing))
		}
	}
}

// object calls visit for every key of an object, with the scanner standing before the key's value. Visit reads the
// value; it also has to look for keys that occur twice, because only it knows where it keeps them.
func (s *scanner) object(visit func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return visit(key)
	})
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start, escaped := s.pos, false
	for ; s.pos < len(s.src); s.pos++ {
		switch c := s.src[s.pos]; {
		case c == '"':
			raw := s.src[start:s.pos]
			s.pos++
			if !utf8.Valid(raw) {
				return "", fmt.Errorf("string at byte %d is not UTF-8", start)
			}
			if !escaped {
				return string(raw), nil
			}
			var text string
			if err := json.Unmarshal(s.src[start-1:s.pos], &text); err != nil {
				return "", fmt.Errorf("string at byte %d: %w", start, err)
			}
			return text, nil
		case c == '\\':
			escaped = true
			s.pos++
		case c < 0x20:
			return "", fmt.Errorf("control character at byte %d", s.pos)
		}
	}
	return "", fmt.Errorf("string at byte %d has no end", start)
}

// uint reads a non-negative integer below 2^63 written in plain digits.
func (s *scanner) uint() (int64, error) {
	c := s.next()
	if c < '0' || c > '9' {
		return 0, s.unexpected(c, "a non-negative integer")
	}
	start := s.pos
	var v uint64
	for ; s.pos < len(s.src) && s.src[s.pos] >= '0' && s.src[s.pos] <= '9'; s.pos++ {
		v = v*10 + uint64(s.src[s.pos]-'0')
		if v >= 1<<63 || s.pos-start >= 19 {
			return 0, fmt.Errorf("integer at byte %d is 2^63 or more", start)
		}
	}
	if s.src[start] == '0' && s.pos-start > 1 {
		return 0, fmt.Errorf("integer at byte %d has a leading zero", start)
	}
	if s.pos < len(s.src) && (s.src[s.pos] == '.' || s.src[s.pos] == 'e' || s.src[s.pos] == 'E') {
		return 0, fmt.Errorf("number at byte %d is not a plain integer", start)
	}
	return int64(v), nil
}

// end reports anything but white space after the value that was read.
func (s *scanner) end() error {
	if c := s.next(); s.pos < len(s.src) {
		return s.unexpected(c, "the end")
	}
	return nil
}

// short quotes a name from a file for a message, cut so that a hostile name cannot fill a log.
func short(name string) string {
	const most = 120
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
}
