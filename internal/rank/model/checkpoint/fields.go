package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// ErrUnsupported is wrapped by the error about a value of config.json that is well formed but asks
// for something that this engine does not do, such as a quantized checkpoint.
var ErrUnsupported = errors.New("not supported")

// MaxDim bounds every count and width in config.json.
const MaxDim = 1 << 31

// Fields reads a JSON object field by field and keeps the first error. Keys are matched exactly, as
// Python does; encoding/json would match them without regard to case.
type Fields struct {
	where string // prefix of the field names in messages, such as "rope_scaling."
	raw   map[string]json.RawMessage
	asked map[string]bool // keys that were asked for, there or not
	// renamed are the names that fields had, by those that they have.
	renamed map[string]string
	err     error
}

// ReadFields reads the object.
func ReadFields(raw []byte) (*Fields, error) {
	f := &Fields{asked: map[string]bool{}}
	if err := json.Unmarshal(raw, &f.raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if f.raw == nil {
		return nil, fmt.Errorf("%w: not an object", ErrMalformed)
	}
	return f, nil
}

// Fail keeps an error about a key, of a kind: ErrMalformed or ErrUnsupported.
func (f *Fields) Fail(kind error, key, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: %s%s %s", kind, f.where, cmp.Or(f.renamed[key], key),
			fmt.Sprintf(format, args...))
	}
}

// Rename gives fields other names, of which messages say the old ones. A field that is there by
// both has the value of the old one.
func (f *Fields) Rename(names map[string]string) {
	f.renamed = map[string]string{}
	for old, key := range names {
		if v, ok := f.raw[old]; ok {
			f.raw[key], f.renamed[key] = v, old
			delete(f.raw, old)
		}
	}
}

// Has reports whether the key is there, even as null.
func (f *Fields) Has(key string) bool {
	f.asked[key] = true
	_, ok := f.raw[key]
	return ok
}

// Set reports whether the key is there with a value other than null.
func (f *Fields) Set(key string) bool {
	f.asked[key] = true
	v, ok := f.raw[key]
	return ok && !bytes.Equal(v, []byte("null"))
}

// decode reads the value of a key that is set.
func (f *Fields) decode(key string, into any, want string) {
	if err := json.Unmarshal(f.raw[key], into); err != nil {
		f.Fail(ErrMalformed, key, "is %s where %s is expected", excerpt(f.raw[key]), want)
	}
}

// Integer reads a whole number between low and high. An absent key gives def; null is an error,
// because no default stands for it.
func (f *Fields) Integer(key string, def, low, high int) int {
	if !f.Has(key) {
		return def
	}
	v, ok := wholeNumber(f.raw[key])
	if !ok {
		f.Fail(ErrMalformed, key, "is %s where a whole number is expected", excerpt(f.raw[key]))
		return def
	}
	if v < int64(low) || v > int64(high) {
		f.Fail(ErrMalformed, key, "is %d, outside %d to %d", v, low, high)
		return def
	}
	return int(v)
}

// Nullable is Integer with null meaning the same as an absent key.
func (f *Fields) Nullable(key string, def, low, high int) int {
	if !f.Set(key) {
		return def
	}
	return f.Integer(key, def, low, high)
}

// Number reads a finite number above low; absent and null give def.
func (f *Fields) Number(key string, def, low float64) float64 {
	if !f.Set(key) {
		return def
	}
	var v float64
	f.decode(key, &v, "a number")
	if f.err == nil && !(v > low) {
		f.Fail(ErrMalformed, key, "is %v, which is not above %v", v, low)
	}
	return v
}

// Flag reads a boolean; absent and null give def.
func (f *Fields) Flag(key string, def bool) bool {
	if f.Set(key) {
		f.decode(key, &def, "true or false")
	}
	return def
}

// Text reads a string; absent and null give def.
func (f *Fields) Text(key, def string) string {
	if f.Set(key) {
		f.decode(key, &def, "a string")
	}
	return def
}

// Numbers reads a list of positive numbers, nil if it is absent.
func (f *Fields) Numbers(key string) []float64 {
	var list []float64
	if !f.Set(key) {
		return nil
	}
	f.decode(key, &list, "a list of numbers")
	for _, v := range list {
		if !(v > 0) || math.IsInf(v, 0) {
			f.Fail(ErrMalformed, key, "has %v", v)
		}
	}
	return list
}

// Range reads two numbers that are not negative, in order. transformers 5 writes an infinite one as
// {"__float__": "Infinity"}.
func (f *Fields) Range(key string, low, high float64) (float64, float64) {
	if !f.Set(key) {
		return low, high
	}
	var list []json.RawMessage
	f.decode(key, &list, "a list of two numbers")
	var ends []float64
	for _, raw := range list {
		var end float64
		var tagged struct {
			Float string `json:"__float__"`
		}
		if json.Unmarshal(raw, &tagged) == nil && tagged.Float == "Infinity" {
			end = math.Inf(1)
		} else if json.Unmarshal(raw, &end) != nil {
			break
		}
		ends = append(ends, end)
	}
	if len(list) != 2 || len(ends) != 2 || ends[0] < 0 || ends[1] < ends[0] {
		f.Fail(ErrMalformed, key, "is %s where two numbers in order are expected", f.Excerpt(key))
		return low, high
	}
	return ends[0], ends[1]
}

// Only fails unless the field has a value, which is also the default.
func (f *Fields) Only(key, value string) {
	if got := f.Text(key, value); got != value && f.err == nil {
		f.Fail(ErrUnsupported, key, "is %s", Short(got))
	}
}

// Texts reads a list of strings; absent and null give none.
func (f *Fields) Texts(key string) []string {
	var v []string
	if f.Set(key) {
		f.decode(key, &v, "a list of strings")
	}
	return v
}

// IDs reads token ids: a number, a list of numbers, or null for none. An absent key gives def.
func (f *Fields) IDs(key string, def []int) []int {
	if !f.Has(key) {
		return def
	}
	if !f.Set(key) {
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
		if !ok || v < 0 || v >= MaxDim {
			f.Fail(ErrMalformed, key, "is %s where a token id or a list of them is expected",
				excerpt(f.raw[key]))
			return nil
		}
		ids = append(ids, int(v))
	}
	return ids
}

// ID reads one token id; null and a negative number, which old configurations have, mean none and
// give -1.
func (f *Fields) ID(key string, def int) int {
	if !f.Has(key) {
		return def
	}
	return max(-1, f.Nullable(key, -1, -MaxDim, MaxDim-1))
}

// Object reads a nested object; absent and null give nil.
func (f *Fields) Object(key string) *Fields {
	if !f.Set(key) {
		return nil
	}
	inner := &Fields{where: f.where + key + ".", asked: map[string]bool{}}
	f.decode(key, &inner.raw, "an object")
	if f.err != nil {
		return nil
	}
	return inner
}

// Overlay gives f the values that other has of some keys.
func (f *Fields) Overlay(other *Fields, keys ...string) {
	for _, key := range keys {
		if other.Set(key) {
			f.raw[key] = other.raw[key]
		}
	}
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

// Err is the first error.
func (f *Fields) Err() error { return f.err }

// Adopt keeps the error of a nested object.
func (f *Fields) Adopt(inner *Fields) {
	if f.err == nil {
		f.err = inner.err
	}
}

// Unasked are the keys that nothing asked for, sorted, but for values that switch nothing on: null,
// false, 0, and what is empty.
func (f *Fields) Unasked() (keys []string) {
	for key, v := range f.raw {
		switch string(bytes.TrimSpace(v)) {
		case "null", "false", "0", "0.0", `""`, "[]", "{}":
			continue
		}
		if !f.asked[key] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Keys are the keys, sorted.
func (f *Fields) Keys() []string { return slices.Sorted(maps.Keys(f.raw)) }

// Len is the number of keys.
func (f *Fields) Len() int { return len(f.raw) }

// Excerpt is the beginning of a key's value, for a message.
func (f *Fields) Excerpt(key string) string { return excerpt(f.raw[key]) }

// excerpt shortens a JSON value for a message.
func excerpt(raw []byte) string {
	const most = 80
	if len(raw) <= most {
		return string(raw)
	}
	return string(bytes.ToValidUTF8(raw[:most], nil)) + "…"
}
