package chattemplate

import (
	"math"
	"strconv"
)

// indexFrom is the size from which a Map keeps an index; below it a scan is faster.
const indexFrom = 9

// maxTupleKey bounds the bytes of a tuple used as a dict key.
const maxTupleKey = 1 << 16

type entry struct {
	key   Value
	value Value
}

// Map is a dict: it keeps its keys in the order they were first set. It is not safe to Set while another
// goroutine reads it.
type Map struct {
	entries []entry
	index   map[hashKey]int
}

// hashKey is what Python's hash and equality make of a dict key: 1, 1.0 and True are one key.
type hashKey struct {
	text string
	num  int64
	kind kind
}

// NewMap returns an empty map.
func NewMap() *Map { return &Map{} }

// Set puts value under the str key, at its old place if the key is already there.
func (m *Map) Set(key string, value Value) { m.set(strValue(key), value.settled()) }

// Get returns the value under the str key, and whether there is one.
func (m *Map) Get(key string) (Value, bool) {
	if m == nil {
		return Value{}, false
	}
	if i := m.findString(key); i >= 0 {
		return m.entries[i].value, true
	}
	return Value{}, false
}

// Keys returns the keys in order, printed as text where a template made one that is not a str.
func (m *Map) Keys() []string {
	keys := make([]string, m.Len())
	for i := range keys {
		keys[i] = m.entries[i].key.String()
	}
	return keys
}

// Len returns the number of keys; a nil Map has none.
func (m *Map) Len() int {
	if m == nil {
		return 0
	}
	return len(m.entries)
}

// Value returns the map as a Value. The map must not be changed afterwards.
func (m *Map) Value() Value { return Value{kind: kindMap, ref: m} }

func (m *Map) findString(key string) int {
	if m.index != nil {
		if i, ok := m.index[hashKey{kind: kindString, text: key}]; ok {
			return i
		}
		return -1
	}
	for i := range m.entries {
		if m.entries[i].key.kind == kindString && m.entries[i].key.str == key {
			return i
		}
	}
	return -1
}

// find returns the position of key, -1 if it is absent, and an error for a key that has no hash.
func (m *Map) find(key Value) (int, error) {
	if key.kind == kindString {
		return m.findString(key.str), nil
	}
	h, err := hashOf(key, 0)
	if err != nil {
		return -1, err
	}
	if m.index != nil {
		if i, ok := m.index[h]; ok {
			return i, nil
		}
		return -1, nil
	}
	for i := range m.entries {
		if m.entries[i].key.kind == kindString {
			continue
		}
		if other, err := hashOf(m.entries[i].key, 0); err == nil && other == h {
			return i, nil
		}
	}
	return -1, nil
}

// set is Set for any hashable key; it reports the key that is not.
func (m *Map) set(key, value Value) error {
	i, err := m.find(key)
	if err != nil {
		return err
	}
	if i >= 0 {
		m.entries[i].value = value
		return nil
	}
	m.entries = append(m.entries, entry{key, value})
	if m.index != nil {
		h, err := hashOf(key, 0)
		if err != nil {
			return err
		}
		m.index[h] = len(m.entries) - 1
		return nil
	}
	if len(m.entries) < indexFrom {
		return nil
	}
	m.index = make(map[hashKey]int, 2*indexFrom)
	for i := range m.entries {
		h, err := hashOf(m.entries[i].key, 0)
		if err != nil {
			return err
		}
		m.index[h] = i
	}
	return nil
}

// setItem puts a value into a map under construction and counts the hashing of a long key.
func (run *budget) setItem(m *Map, key, value Value) error {
	if err := run.work(len(key.str)); err != nil {
		return err
	}
	return m.set(key, value)
}

func (m *Map) without(key string) *Map {
	kept := &Map{entries: make([]entry, 0, m.Len())}
	for _, e := range m.entries {
		if e.key.kind == kindString && e.key.str == key {
			continue
		}
		// The keys are hashable and distinct: they come from a map.
		_ = kept.set(e.key, e.value)
	}
	return kept
}

func hashOf(v Value, depth int) (hashKey, error) {
	switch v.kind {
	case kindString:
		return hashKey{kind: kindString, text: v.str}, nil
	case kindBool, kindInt:
		return hashKey{kind: kindInt, num: v.num}, nil
	case kindFloat:
		f := v.float()
		if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return hashKey{kind: kindInt, num: int64(f)}, nil
		}
		return hashKey{kind: kindFloat, num: v.num}, nil
	case kindNone:
		return hashKey{kind: kindNone}, nil
	case kindUndefined, kindMissing:
		return hashKey{kind: kindUndefined}, nil
	case kindBig:
		n := bigOf(v)
		return hashKey{kind: kindBig, num: int64(n.Sign()), text: string(n.Bytes())}, nil
	case kindTuple:
		if depth > maxValueDepth {
			return hashKey{}, errNesting()
		}
		var text []byte
		for _, item := range v.items() {
			h, err := hashOf(item, depth+1)
			if err != nil {
				return hashKey{}, err
			}
			if len(text)+len(h.text) > maxTupleKey {
				return hashKey{}, errorf("tuple is too large to be a dict key")
			}
			text = append(text, byte(h.kind))
			text = strconv.AppendInt(text, h.num, 10)
			text = strconv.AppendInt(append(text, ':'), int64(len(h.text)), 10)
			text = append(append(text, ':'), h.text...)
		}
		return hashKey{kind: kindTuple, text: string(text)}, nil
	default:
		return hashKey{}, errorf("unhashable type: '%s'", v.typeName())
	}
}
