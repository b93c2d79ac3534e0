package wire

import "encoding/json"

// Fields hands out the members of a request body by name, checks their types, and keeps the first
// error. What is never read is left over as unknown.
type Fields struct {
	Members map[string][]byte
	Lim     Limits
	Err     *Error
	// Release gives back what the members are parts of; nil for nothing.
	Release func()
	// shape notes what is asked for; nil for nothing.
	shape Shape
}

// Done lets go of the members and the body. Calling it twice is harmless.
func (f *Fields) Done() {
	f.Members = nil
	if f.Release != nil {
		f.Release()
	}
}

// NewFields hands out the members of a body within limits.
func NewFields(members []Member, lim Limits) *Fields {
	f := &Fields{Members: make(map[string][]byte, len(members)), Lim: lim}
	for _, m := range members {
		f.Members[m.Key] = m.Raw
	}
	return f
}

// Fail keeps the first error; nil is none.
func (f *Fields) Fail(err *Error) {
	if err != nil && f.Err == nil {
		f.Err = err
	}
}

// Pop returns the text of a member and removes it; nil when there is none.
func (f *Fields) Pop(name string) []byte {
	raw := f.Members[name]
	delete(f.Members, name)
	return raw
}

// Refused is Pop for a name that the route has not, although others have: a decoder that they share
// asks for it later, in vain.
func (f *Fields) Refused(name string) []byte {
	f.note(name, FieldShape{Type: never})
	return f.Pop(name)
}

// Value returns the text of a member that is there and not null, nil otherwise.
func (f *Fields) Value(name string) []byte {
	f.note(name, FieldShape{Null: true})
	return f.value(name)
}

func (f *Fields) value(name string) []byte {
	raw := f.Pop(name)
	if IsNull(raw) {
		return nil
	}
	return raw
}

// Required is value for fields that have no null: there null is an error.
func (f *Fields) Required(name string) []byte {
	f.note(name, FieldShape{})
	raw := f.Pop(name)
	if raw != nil && IsNull(raw) {
		f.Fail(BadRequest(name, "`%s` must not be null", name))
		return nil
	}
	return raw
}

// OptInt returns an integer field, nil when absent or null.
func (f *Fields) OptInt(name string) *int64 {
	f.note(name, FieldShape{Type: "integer", Null: true})
	return f.parseInt(name, f.Value(name))
}

// Integer returns an integer field that must not be null.
func (f *Fields) Integer(name string, otherwise int64) int64 {
	f.note(name, FieldShape{Type: "integer"})
	if v := f.parseInt(name, f.Required(name)); v != nil {
		return *v
	}
	return otherwise
}

func (f *Fields) parseInt(name string, raw []byte) *int64 {
	if raw == nil {
		return nil
	}
	v, err := ParseInt(name, raw)
	if err != nil {
		f.Fail(err)
		return nil
	}
	return &v
}

// OptFloat returns a finite number, nil when absent or null.
func (f *Fields) OptFloat(name string) *float64 {
	f.note(name, FieldShape{Type: "number", Null: true})
	raw := f.Value(name)
	if raw == nil {
		return nil
	}
	v, err := ParseFloat(name, raw)
	if err != nil {
		f.Fail(err)
		return nil
	}
	return &v
}

// OptBool returns a boolean that may be null, which means otherwise.
func (f *Fields) OptBool(name string, otherwise bool) bool {
	f.note(name, FieldShape{Type: "boolean", Null: true})
	return f.ParseBool(name, f.Value(name), otherwise)
}

// Boolean returns a boolean that must not be null.
func (f *Fields) Boolean(name string, otherwise bool) bool {
	f.note(name, FieldShape{Type: "boolean"})
	return f.ParseBool(name, f.Required(name), otherwise)
}

// ParseBool reads a boolean that stands in the field name; nil is otherwise.
func (f *Fields) ParseBool(name string, raw []byte, otherwise bool) bool {
	if raw == nil {
		return otherwise
	}
	v, ok := CoerceBool(raw)
	if !ok {
		f.Fail(BadRequest(name, "`%s` must be a boolean, got %s", name, Describe(raw)))
		return otherwise
	}
	return v
}

// OptString returns a string, nil when absent or null.
func (f *Fields) OptString(name string) *string {
	f.note(name, FieldShape{Type: "string", Null: true})
	raw := f.Value(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '"' {
		f.Fail(BadRequest(name, "`%s` must be a string, got %s", name, Describe(raw)))
		return nil
	}
	s := Unquote(raw)
	return &s
}

// Array returns the text of an array, nil when absent or null.
func (f *Fields) Array(name string) []byte {
	f.note(name, FieldShape{Type: "array", Null: true})
	return f.composite(name, '[', "an array")
}

// Object returns the text of an object, nil when absent or null.
func (f *Fields) Object(name string) []byte {
	f.note(name, FieldShape{Type: "object", Null: true})
	return f.composite(name, '{', "an object")
}

func (f *Fields) composite(name string, open byte, what string) []byte {
	raw := f.Value(name)
	if raw == nil || raw[0] == open {
		return raw
	}
	f.Fail(BadRequest(name, "`%s` must be %s, got %s", name, what, Describe(raw)))
	return nil
}

// Tokens returns a list of token ids within the vocabulary, nil when absent or null.
func (f *Fields) Tokens(name string, most, vocab int) []int32 {
	f.note(name, FieldShape{Type: "array", Items: "integer", Null: true})
	raw := f.Array(name)
	if raw == nil {
		return nil
	}
	ids := make([]int32, 0, 16)
	f.Fail(EachElement(raw, func(i int, raw []byte) *Error {
		if i == most {
			return BadRequest(name, "`%s` has more than %d entries", name, most)
		}
		id, err := ParseToken(name, raw, vocab)
		ids = append(ids, id)
		return err
	}))
	return ids
}

// Strings returns a list of strings, nil when absent or null.
func (f *Fields) Strings(name string, raw []byte, most, bytes int) []string {
	f.noteStrings(name)
	if raw == nil {
		return nil
	}
	var list []string
	f.Fail(EachElement(raw, func(i int, raw []byte) *Error {
		if i == most {
			return BadRequest(name, "`%s` has more than %d entries", name, most)
		}
		if raw[0] != '"' {
			return BadRequest(name, "`%s[%d]` must be a string, got %s", name, i, Describe(raw))
		}
		s := Unquote(raw)
		if s == "" {
			return BadRequest(name, "`%s` cannot contain an empty string", name)
		}
		if len(s) > bytes {
			return BadRequest(name, "`%s[%d]` is longer than %d bytes", name, i, bytes)
		}
		list = append(list, s)
		return nil
	}))
	return list
}

// Unsupported refuses a known field by name unless its value is neutral. null is always neutral.
func (f *Fields) Unsupported(name string, neutral ...string) {
	raw := f.value(name)
	if raw == nil {
		return
	}
	for _, n := range neutral {
		if string(raw) == n || coercesTo(raw, []byte(n)) {
			return
		}
	}
	f.Fail(BadRequest(name, "`%s` is not supported by this server", name))
}

// Removed refuses a field of older versions and says what took its place.
func (f *Fields) Removed(name, instead string, neutral ...string) {
	before := f.Err
	if f.Unsupported(name, neutral...); f.Err != before {
		f.Err.Message = "`" + name + "` was removed from the API: " + instead
	}
}

// IsNull says that a value is null.
func IsNull(raw []byte) bool { return string(raw) == "null" }

// ParseInt reads an integer that stands in the field name.
func ParseInt(name string, raw []byte) (int64, *Error) {
	v, fault := coerceInt(raw)
	switch fault {
	case notOfType:
		return 0, BadRequest(name, "`%s` must be an integer, got %s", name, shown(raw))
	case outOfRange:
		return 0, BadRequest(name, "`%s` is out of the range of 64-bit integers: %s", name,
			Clip(string(raw)))
	}
	return v, nil
}

// ParseFloat reads a finite number that stands in the field name.
func ParseFloat(name string, raw []byte) (float64, *Error) {
	v, fault := coerceFloat(raw)
	switch fault {
	case notOfType:
		return 0, BadRequest(name, "`%s` must be a number, got %s", name, shown(raw))
	case outOfRange:
		return 0, BadRequest(name, "`%s` must be a finite number, got %s", name, Clip(string(raw)))
	}
	return v, nil
}

// shown is how a value that has the wrong form appears in a message: numbers and texts as they are,
// the rest by type.
func shown(raw []byte) string {
	if raw[0] == '"' || raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		return Clip(string(raw))
	}
	return Describe(raw)
}

// ParseToken reads a token id within the vocabulary.
func ParseToken(name string, raw []byte, vocab int) (int32, *Error) {
	id, err := ParseInt(name, raw)
	if err != nil {
		return 0, err
	}
	if id < 0 || id >= int64(vocab) {
		return 0, BadRequest(name, "token id %d in `%s` is out of vocabulary: ids are 0 to %d", id,
			name, vocab-1)
	}
	return int32(id), nil
}

// Describe names the JSON type of a value.
func Describe(raw []byte) string {
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// Ranged returns an integer within bounds; null means otherwise.
func (f *Fields) Ranged(name string, otherwise, low, high int64) int64 {
	f.note(name, FieldShape{Type: "integer", Null: true, Low: &low, High: &high})
	v := f.OptInt(name)
	if v == nil {
		return otherwise
	}
	if *v < low || *v > high {
		f.Fail(BadRequest(name, "`%s` must be between %d and %d, got %d", name, low, high, *v))
		return otherwise
	}
	return *v
}

// Text returns a string that must be there.
func (f *Fields) Text(name string) string {
	v := f.OptString(name)
	if v == nil {
		f.Fail(BadRequest(name, "`%s` is required", name))
		return ""
	}
	return *v
}

// Metadata returns strings by their names, nil when absent or null.
func (f *Fields) Metadata() map[string]string {
	f.note("metadata", FieldShape{Type: "object", Items: "string", Null: true})
	raw := f.Object("metadata")
	if raw == nil {
		return nil
	}
	m := map[string]string{}
	if err := json.Unmarshal(raw, &m); err != nil {
		f.Fail(BadRequest("metadata", "the values of `metadata` must be strings"))
	}
	return m
}

// ValidID accepts what may go into response ids, headers and logs.
func ValidID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
