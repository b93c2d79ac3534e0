// Package jsonx reads JSON text in place, member by member, with the checks that text from outside
// needs.
//
// The grammar is jsontext's: RFC 8259 with duplicate names and invalid UTF-8 refused, members in
// their order, numbers as they are written. This package adds limits on size, nesting and members,
// and errors that say in plain words what is wrong at which byte.
package jsonx

import (
	"bytes"
	"fmt"
	"iter"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits bound what a text may hold. A field that is not positive means the default beside it.
type Limits struct {
	Bytes   int // length of the text: 256 MiB
	Depth   int // levels of objects and arrays: 128
	Members int // members of one object: 65536
	// Duplicates admits a name twice in one object. It is for a caller that enters the names into a
	// table of its own and finds duplicates there.
	Duplicates bool
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = 256 << 20
	}
	if l.Depth <= 0 {
		l.Depth = 128
	}
	if l.Members <= 0 {
		l.Members = 65536
	}
	return l
}

// Reader reads one JSON text. Each method reads the next value, or the next name in an object, and
// is an error if that is of another kind. After an error a Reader is not used any more.
type Reader struct {
	data []byte
	lim  Limits
	dec  jsontext.Decoder
	buf  bytes.Buffer // what dec reads: data, in place
}

// readers keeps the decoders' stacks, which a small text would otherwise spend its time on.
var readers = sync.Pool{New: func() any { return new(Reader) }}

func newReader(data []byte, duplicates bool) *Reader {
	r := readers.Get().(*Reader)
	r.data = data
	r.buf = *bytes.NewBuffer(data)
	r.dec.Reset(&r.buf, jsontext.AllowDuplicateNames(duplicates))
	return r
}

// free gives the Reader back and forgets its text.
func (r *Reader) free() {
	r.data = nil
	r.buf = bytes.Buffer{}
	r.dec.Reset(&r.buf)
	readers.Put(r)
}

// Read calls read with a Reader of data, which holds one value and may have white space around it.
// The Reader is valid until read returns, the texts that it returned for as long as data is.
func Read(data []byte, lim Limits, read func(r *Reader) error) error {
	lim = lim.withDefaults()
	if len(data) > lim.Bytes {
		return fmt.Errorf("JSON text of %d bytes is above the limit of %d", len(data), lim.Bytes)
	}
	r := newReader(data, lim.Duplicates)
	defer r.free()
	r.lim = lim
	if err := read(r); err != nil {
		return err
	}
	if at := r.space(r.Offset()); at < len(data) {
		return errorAt(at, "data after the JSON object")
	}
	return nil
}

// Offset is the number of bytes read so far.
func (r *Reader) Offset() int { return int(r.dec.InputOffset()) }

// Left is the number of bytes not read yet.
func (r *Reader) Left() int { return len(r.data) - r.Offset() }

// Start is the offset of the next value or name; it is the text's length at the end.
func (r *Reader) Start() int {
	_, at := r.separator()
	return at
}

// Kind is the first byte of the next value, '0' for any number, '}' or ']' at the end of an object
// or array. It is 0 where no value can be; the next read has the error.
func (r *Reader) Kind() byte { return byte(r.dec.PeekKind()) }

// Object reads an object. It calls member after each name; member reads the value.
func (r *Reader) Object(member func(name string) error) error {
	return r.Names(func() error {
		name, err := r.Text()
		if err != nil {
			return err
		}
		if r.at(r.space(r.Offset())) != ':' {
			return r.Skip() // fails: what follows is not the name's value
		}
		return member(name)
	})
}

// Names reads an object. It calls member at each name; member reads the name, as text, and the
// value.
func (r *Reader) Names(member func() error) error {
	if err := r.enter('{', "'{'"); err != nil {
		return err
	}
	for n := 0; r.dec.PeekKind() != '}'; n++ {
		if n == r.lim.Members {
			return r.tooMany()
		}
		if err := member(); err != nil {
			return err
		}
	}
	return r.readBracket()
}

// Array reads an array. It calls element at each element, which element reads; i counts from 0.
func (r *Reader) Array(element func(i int) error) error {
	if err := r.enter('[', "'['"); err != nil {
		return err
	}
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	return r.readBracket()
}

func (r *Reader) enter(kind byte, want string) error {
	if err := r.expect(kind, want); err != nil {
		return err
	}
	if r.dec.StackDepth() == r.lim.Depth {
		return r.tooDeep()
	}
	return r.readBracket()
}

// readBracket reads a bracket that Kind has announced.
func (r *Reader) readBracket() error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.explain(err)
	}
	return nil
}

// expect checks the kind of the next value.
func (r *Reader) expect(kind byte, want string) error {
	got := r.Kind()
	if got == kind {
		return nil
	}
	at := r.Start()
	if got == 0 || got == '}' || got == ']' || r.isName() {
		_, err := r.dec.ReadValue()
		return r.explain(err)
	}
	return errorAt(at, "expected %s, got %q", want, rune(r.data[at]))
}

// isName reports whether a name comes next, or the end of an object.
func (r *Reader) isName() bool {
	kind, n := r.dec.StackIndex(r.dec.StackDepth())
	return kind == '{' && n%2 == 0 // names and values are counted together
}

// Text reads a string or a name.
func (r *Reader) Text() (string, error) {
	if err := r.expect('"', "a string"); err != nil {
		return "", err
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return "", r.explain(err)
	}
	return token.String(), nil
}

// AppendText is Text that appends to dst.
func (r *Reader) AppendText(dst []byte) ([]byte, error) {
	if err := r.expect('"', "a string"); err != nil {
		return dst, err
	}
	quoted, err := r.dec.ReadValue()
	if err != nil {
		return dst, r.explain(err)
	}
	return appendUnquoted(dst, quoted), nil
}

// Natural reads a number that must be written as a plain integer from 0 to most.
func (r *Reader) Natural(most int64) (int64, error) {
	if err := r.expect('0', "a number"); err != nil {
		return 0, err
	}
	text, err := r.dec.ReadValue()
	if err != nil {
		return 0, r.explain(err)
	}
	n := int64(0)
	for _, c := range text {
		digit := int64(c) - '0'
		if digit < 0 || digit > min(9, most) || n > (most-digit)/10 {
			at := r.Offset() - len(text)
			return 0, errorAt(at, "%.40s is not a whole number from 0 to %d", text, most)
		}
		n = 10*n + digit
	}
	return n, nil
}

// Skip reads any value and forgets it.
func (r *Reader) Skip() error {
	_, err := r.Raw()
	return err
}

// Raw reads any value and returns its text, a part of the Reader's data.
func (r *Reader) Raw() ([]byte, error) {
	kind := r.Kind()
	if kind != '{' && kind != '[' {
		text, err := r.dec.ReadValue()
		if err != nil {
			return nil, r.explain(err)
		}
		return text, nil
	}
	start := r.Start()
	for depth, outer := r.dec.StackDepth(), r.dec.StackDepth(); ; {
		token, err := r.dec.ReadToken()
		if err != nil {
			return nil, r.explain(err)
		}
		switch token.Kind() {
		case '{', '[':
			if depth++; depth > r.lim.Depth {
				return nil, r.tooDeep()
			}
		case '}', ']':
			if depth--; depth == outer {
				return r.data[start:r.Offset()], nil
			}
		case '"':
			// Names and values are counted together.
			if in, n := r.dec.StackIndex(depth); in == '{' && n > 2*int64(r.lim.Members) {
				return nil, r.tooMany()
			}
		}
	}
}

func (r *Reader) tooDeep() error {
	return errorAt(r.Offset(), "nested deeper than %d levels", r.lim.Depth)
}

func (r *Reader) tooMany() error {
	return errorAt(r.Offset(), "more than %d members in one object", r.lim.Members)
}

// Elements yields the texts of the elements of an array. The array's text has been checked before;
// what is wrong in it ends the sequence.
func Elements(array []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		r := newReader(array, true)
		defer r.free()
		if _, err := r.dec.ReadToken(); err != nil {
			return
		}
		for i := 0; r.dec.PeekKind() != ']'; i++ {
			text, err := r.dec.ReadValue()
			if err != nil || !yield(i, text) {
				return
			}
		}
	}
}

// Members yields the names and the texts of the values of an object in their order. The object's
// text has been checked before; what is wrong in it ends the sequence.
func Members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		r := newReader(object, true)
		defer r.free()
		if _, err := r.dec.ReadToken(); err != nil {
			return
		}
		for r.dec.PeekKind() == '"' {
			token, err := r.dec.ReadToken()
			if err != nil {
				return
			}
			name := token.String()
			text, err := r.dec.ReadValue()
			if err != nil || !yield(name, text) {
				return
			}
		}
	}
}

// Strings yields the texts, with their quotes, of all strings in a value at any level, but not the
// names, and the offset of each. The value's text has been checked before; what is wrong in it ends
// the sequence.
func Strings(value []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		r := newReader(value, true)
		defer r.free()
		for {
			if r.dec.PeekKind() != '"' {
				if _, err := r.dec.ReadToken(); err != nil {
					return
				}
				continue
			}
			isName := r.isName()
			text, err := r.dec.ReadValue()
			if err != nil {
				return
			}
			if !isName && !yield(r.Offset()-len(text), text) {
				return
			}
		}
	}
}

// Unquote decodes the text of a string that was checked before.
func Unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	return string(appendUnquoted(nil, quoted))
}

func appendUnquoted(dst, quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return append(dst, quoted[1:len(quoted)-1]...)
	}
	dst, _ = jsontext.AppendUnquote(dst, quoted) // the text was checked
	return dst
}

// Error is what is wrong with a text, and where.
type Error struct {
	Offset int // of the byte at fault
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() + " at byte " + strconv.Itoa(e.Offset) }

// Unwrap returns what is wrong, without the place.
func (e *Error) Unwrap() error { return e.Err }

func errorAt(offset int, format string, args ...any) error {
	return &Error{Offset: offset, Err: fmt.Errorf(format, args...)}
}
