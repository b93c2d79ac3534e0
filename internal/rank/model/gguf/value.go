package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// Value is the value of a key.
func (f *File) Value(key string) (Value, bool) {
	v, ok := f.meta[key]
	return v, ok
}

// Keys are all keys of the metadata, in no order.
func (f *File) Keys() (keys []string) {
	for key := range f.meta {
		keys = append(keys, key)
	}
	return keys
}

// integerAt reads a number of size bytes, which is a bool, or an integer of the kind.
func integerAt(k Kind, b []byte) (int64, bool) {
	switch k {
	case Uint8, Bool:
		return int64(b[0]), true
	case Int8:
		return int64(int8(b[0])), true
	case Uint16:
		return int64(binary.LittleEndian.Uint16(b)), true
	case Int16:
		return int64(int16(binary.LittleEndian.Uint16(b))), true
	case Uint32:
		return int64(binary.LittleEndian.Uint32(b)), true
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	case Uint64, Int64:
		v := binary.LittleEndian.Uint64(b)
		return int64(v), k == Int64 || v <= math.MaxInt64
	}
	return 0, false
}

// Integer is a single number that is whole.
func (v Value) Integer() (int64, bool) {
	if v.List || v.Kind == Bool {
		return 0, false
	}
	if f, ok := v.Float(); ok && v.isFloat() {
		return int64(f), f == math.Trunc(f) && math.Abs(f) < 1<<53
	}
	if sizes[v.Kind] == 0 {
		return 0, false
	}
	return integerAt(v.Kind, v.raw)
}

func (v Value) isFloat() bool { return v.Kind == Float32 || v.Kind == Float64 }

// Float is a single number.
func (v Value) Float() (float64, bool) {
	if v.List {
		return 0, false
	}
	return v.floatAt(0)
}

// floatAt is one of the numbers of an array.
func (v Value) floatAt(i int) (float64, bool) {
	size := sizes[v.Kind]
	if size == 0 || v.Kind == Bool {
		return 0, false
	}
	b := v.raw[i*size:]
	switch v.Kind {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	}
	n, ok := integerAt(v.Kind, b)
	return float64(n), ok
}

// Flag is a single bool.
func (v Value) Flag() (on, ok bool) {
	if v.List || v.Kind != Bool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Text is a single string.
func (v Value) Text() (string, bool) {
	if v.List || v.Kind != String {
		return "", false
	}
	return string(v.raw[8:]), true
}

// Texts are the strings of an array.
func (v Value) Texts() ([]string, bool) {
	if !v.List || v.Kind != String {
		return nil, false
	}
	list := make([]string, v.Len)
	raw := v.raw
	for i := range list {
		n := binary.LittleEndian.Uint64(raw)
		list[i] = string(raw[8 : 8+n])
		raw = raw[8+n:]
	}
	return list, true
}

// Integers are the whole numbers, or bools, of an array.
func (v Value) Integers() ([]int64, bool) {
	if !v.List || v.isFloat() || v.Kind >= kinds || sizes[v.Kind] == 0 {
		return nil, false
	}
	list := make([]int64, v.Len)
	ok := true
	for i := range list {
		n, fits := integerAt(v.Kind, v.raw[i*sizes[v.Kind]:])
		list[i], ok = n, ok && fits
	}
	return list, ok
}

// Floats are the numbers of an array.
func (v Value) Floats() ([]float64, bool) {
	if !v.List || v.Kind >= kinds || sizes[v.Kind] == 0 || v.Kind == Bool {
		return nil, false
	}
	list := make([]float64, v.Len)
	ok := true
	for i := range list {
		n, fits := v.floatAt(i)
		list[i], ok = n, ok && fits
	}
	return list, ok
}

// String is the value for a message, of a long text or an array what it is.
func (v Value) String() string {
	if v.List {
		return fmt.Sprintf("%d values of %v", v.Len, v.Kind)
	}
	if s, ok := v.Text(); ok {
		return short(s)
	}
	if on, ok := v.Flag(); ok {
		return strconv.FormatBool(on)
	}
	f, _ := v.Float()
	return strconv.FormatFloat(f, 'g', -1, 64)
}
