package values

import (
	"math"
	"strconv"
)

// indexFrom is the size from which a Map keeps an index; below it a scan is faster.
const indexFrom = 9

// maxTupleKey bounds the bytes of a tuple used as a dict key.
const maxTupleKey = 1 << 16

type entry struct {
	Key   Value
	Value Value
}

// Map is a dict: it keeps its keys in the order they were first set. It is not safe to Set while
// another goroutine reads it.
type Map struct {
	Entries []entry
	index   map[HashKey]int
}

// HashKey is what Python's hash and equality make of a dict key: 1, 1.0 and True are one key.
type HashKey struct {
	text string
	num  int64
	kind Kind
}

// NewMap returns an empty map.
func NewMap() *Map { return &Map{} }

// Set puts value under the str key, at its old place if the key is already there.
func (m *Map) Set(key string, value Value) { m.Put(Str(key), value.resolved()) }

// Get returns the value under the str key, and whether there is one.
func (m *Map) Get(key string) (Value, bool) {
	if m == nil {
		return Value{}, false
	}
	if i := m.findString(key); i >= 0 {
		return m.Entries[i].Value, true
	}
	return Value{}, false
}

// Keys returns the keys in order, printed as text where a template made one that is not a str.
func (m *Map) Keys() []string {
	keys := make([]string, m.Len())
	for i := range keys {
		keys[i] = m.Entries[i].Key.String()
	}
	return keys
}

// Len returns the number of keys; a nil Map has none.
func (m *Map) Len() int {
	if m == nil {
		return 0
	}
	return len(m.Entries)
}

// Value returns the map as a Value. The map must not be changed afterwards.
func (m *Map) Value() Value { return Value{Kind: KindMap, Ref: m} }

func (m *Map) findString(key string) int {
	if m.index != nil {
		if i, ok := m.index[HashKey{kind: KindString, text: key}]; ok {
			return i
		}
		return -1
	}
	for i := range m.Entries {
		if m.Entries[i].Key.Kind == KindString && m.Entries[i].Key.Text == key {
			return i
		}
	}
	return -1
}

// Find returns the position of key, -1 if it is absent, and an error for a key that has no hash.
func (m *Map) Find(key Value) (int, error) {
	if key.Kind == KindString {
		return m.findString(key.Text), nil
	}
	h, err := HashOf(key, 0)
	if err != nil {
		return -1, err
	}
	if m.index != nil {
		if i, ok := m.index[h]; ok {
			return i, nil
		}
		return -1, nil
	}
	for i := range m.Entries {
		if m.Entries[i].Key.Kind == KindString {
			continue
		}
		if other, err := HashOf(m.Entries[i].Key, 0); err == nil && other == h {
			return i, nil
		}
	}
	return -1, nil
}

// Put is Set for any hashable key; it reports the key that is not.
func (m *Map) Put(key, value Value) error {
	i, err := m.Find(key)
	if err != nil {
		return err
	}
	if i >= 0 {
		m.Entries[i].Value = value
		return nil
	}
	m.Entries = append(m.Entries, entry{key, value})
	if m.index != nil {
		h, err := HashOf(key, 0)
		if err != nil {
			return err
		}
		m.index[h] = len(m.Entries) - 1
		return nil
	}
	if len(m.Entries) < indexFrom {
		return nil
	}
	m.index = make(map[HashKey]int, 2*indexFrom)
	for i := range m.Entries {
		h, err := HashOf(m.Entries[i].Key, 0)
		if err != nil {
			return err
		}
		m.index[h] = i
	}
	return nil
}

// SetItem puts a value into a map under construction and counts the hashing of a long key.
func (run *Budget) SetItem(m *Map, key, value Value) error {
	if err := run.Work(len(key.Text)); err != nil {
		return err
	}
	return m.Put(key, value)
}

// Without returns a copy that lacks the str key.
func (m *Map) Without(key string) *Map {
	kept := &Map{Entries: make([]entry, 0, m.Len())}
	for _, e := range m.Entries {
		if e.Key.Kind == KindString && e.Key.Text == key {
			continue
		}
		// The keys are hashable and distinct: they come from a map.
		_ = kept.Put(e.Key, e.Value)
	}
	return kept
}

// HashOf returns the key of v in a table; depth is that of v inside other values.
func HashOf(v Value, depth int) (HashKey, error) {
	switch v.Kind {
	case KindString:
		return HashKey{kind: KindString, text: v.Text}, nil
	case KindBool, KindInt:
		return HashKey{kind: KindInt, num: v.Num}, nil
	case KindFloat:
		f := v.AsFloat()
		if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return HashKey{kind: KindInt, num: int64(f)}, nil
		}
		return HashKey{kind: KindFloat, num: v.Num}, nil
	case KindNone:
		return HashKey{kind: KindNone}, nil
	case KindUndefined, KindMissing:
		return HashKey{kind: KindUndefined}, nil
	case KindBig:
		n := BigOf(v)
		return HashKey{kind: KindBig, num: int64(n.Sign()), text: string(n.Bytes())}, nil
	case KindTuple:
		if depth > maxValueDepth {
			return HashKey{}, errNesting()
		}
		var text []byte
		for _, item := range v.Items() {
			h, err := HashOf(item, depth+1)
			if err != nil {
				return HashKey{}, err
			}
			if len(text)+len(h.text) > maxTupleKey {
				return HashKey{}, Errorf("tuple is too large to be a dict key")
			}
			text = append(text, byte(h.kind))
			text = strconv.AppendInt(text, h.num, 10)
			text = strconv.AppendInt(append(text, ':'), int64(len(h.text)), 10)
			text = append(append(text, ':'), h.text...)
		}
		return HashKey{kind: KindTuple, text: string(text)}, nil
	default:
		return HashKey{}, Errorf("unhashable type: '%s'", v.TypeName())
	}
}
