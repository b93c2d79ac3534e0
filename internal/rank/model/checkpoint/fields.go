package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// ErrUnsupported is wrapped by the error about a value of config.json that is well formed but asks
// for something that this engine does not do, such as a quantized checkpoint.
var ErrUnsupported = errors.New("not supported")

// maxDim bounds every count and width in config.json.
const maxDim = 1 << 31

// fields reads a JSON object field by field and keeps the first error. Keys are matched exactly, as
// Python does; encoding/json would match them without regard to case.
type fields struct {
	where string // prefix of the field names in messages, such as "rope_scaling."
	raw   map[string]json.RawMessage
	err   error
}

func readFields(raw []byte) (*fields, error) {
	f := &fields{}
	if err := json.Unmarshal(raw, &f.raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if f.raw == nil {
		return nil, fmt.Errorf("%w: not an object", ErrMalformed)
	}
	return f, nil
}

func (f *fields) fail(kind error, key, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: %s%s %s", kind, f.where, key, fmt.Sprintf(format, args...))
	}
}

// has reports whether the key is there, even as null.
func (f *fields) has(key string) bool {
	_, ok := f.raw[key]
	return ok
}

// set reports whether the key is there with a value other than null.
func (f *fields) set(key string) bool {
	v, ok := f.raw[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// decode reads the value of a key that is set.
func (f *fields) decode(key string, into any, want string) {
	if err := json.Unmarshal(f.raw[key], into); err != nil {
		f.fail(ErrMalformed, key, "is %s where %s is expected", excerpt(f.raw[key]), want)
	}
}

// integer reads a whole number between low and high. An absent key gives def; null is an error,
// because no default stands for it.
func (f *fields) integer(key string, def, low, high int) int {
	if !f.has(key) {
		return def
	}
	v, ok := wholeNumber(f.raw[key])
	if !ok {
		f.fail(ErrMalformed, key, "is %s where a whole number is expected", excerpt(f.raw[key]))
		return def
	}
	if v < int64(low) || v > int64(high) {
		f.fail(ErrMalformed, key, "is %d, outside %d to %d", v, low, high)
		return def
	}
	return int(v)
}

// nullable is integer with null meaning the same as an absent key.
func (f *fields) nullable(key string, def, low, high int) int {
	if !f.set(key) {
		return def
	}
	return f.integer(key, def, low, high)
}

// number reads a finite number above low; absent and null give def.
func (f *fields) number(key string, def, low float64) float64 {
	if !f.set(key) {
		return def
	}
	var v float64
	f.decode(key, &v, "a number")
	if f.err == nil && !(v > low) {
		f.fail(ErrMalformed, key, "is %v, which is not above %v", v, low)
	}
	return v
}

// flag reads a boolean; absent and null give def.
func (f *fields) flag(key string, def bool) bool {
	if f.set(key) {
		f.decode(key, &def, "true or false")
	}
	return def
}

// text reads a string; absent and null give def.
func (f *fields) text(key, def string) string {
	if f.set(key) {
		f.decode(key, &def, "a string")
	}
	return def
}

// texts reads a list of strings; absent and null give none.
func (f *fields) texts(key string) []string {
	var v []string
	if f.set(key) {
		f.decode(key, &v, "a list of strings")
	}
	return v
}

// ids reads token ids: a number, a list of numbers, or null for none. An absent key gives def.
func (f *fields) ids(key string, def []int) []int {
	if !f.has(key) {
		return def
	}
	if !f.set(key) {
		return nil
	}
	var list []json.RawMessage
	if f.raw[key][0] == '[' {
		f.decode(key, &list, "a list of token ids")
	} else {
		list = append(list, f.raw[key])
	}
	var ids []int
	for _, raw := range list {
		v, ok := wholeNumber(raw)
		if !ok || v < 0 || v >= maxDim {
			f.fail(ErrMalformed, key, "is %s where a token id or a list of them is expected",
				excerpt(f.raw[key]))
			return nil
		}
		ids = append(ids, int(v))
	}
	return ids
}

// id reads one token id; null and a negative number, which old configurations have, mean none and
// give -1.
func (f *fields) id(key string, def int) int {
	if !f.has(key) {
		return def
	}
	return max(-1, f.nullable(key, -1, -maxDim, maxDim-1))
}

// object reads a nested object; absent and null give nil.
func (f *fields) object(key string) *fields {
	if !f.set(key) {
		return nil
	}
	inner := &fields{where: f.where + key + "."}
	f.decode(key, &inner.raw, "an object")
	if f.err != nil {
		return nil
	}
	return inner
}

// wholeNumber reads an integer, also one written as 4096.0 or 1e6.
func wholeNumber(raw []byte) (int64, bool) {
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, true
	}
	var v float64
	if json.Unmarshal(raw, &v) != nil || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, false
	}
	// null leaves v untouched.
	return int64(v), string(raw) != "null"
}

// excerpt shortens a JSON value for a message.
func excerpt(raw []byte) string {
	const most = 80
	if len(raw) <= most {
		return string(raw)
	}
	return string(bytes.ToValidUTF8(raw[:most], nil)) + "…"
}
