package openai

import "encoding/json"

// fields hands out the members of a request body by name, checks their types, and keeps the first
// error. What is never read is left over as unknown.
type fields struct {
	members map[string][]byte
	lim     Limits
	err     *apiError
	// release gives back what the members are parts of; nil for nothing.
	release func()
}

// done lets go of the members and the body. Calling it twice is harmless.
func (f *fields) done() {
	f.members = nil
	if f.release != nil {
		f.release()
	}
}

func newFields(members []member, lim Limits) *fields {
	f := &fields{members: make(map[string][]byte, len(members)), lim: lim}
	for _, m := range members {
		f.members[m.key] = m.raw
	}
	return f
}

// fail keeps the first error; nil is none.
func (f *fields) fail(err *apiError) {
	if err != nil && f.err == nil {
		f.err = err
	}
}

// take returns the text of a member and removes it; nil when there is none.
func (f *fields) take(name string) []byte {
	raw := f.members[name]
	delete(f.members, name)
	return raw
}

// value returns the text of a member that is there and not null, nil otherwise.
func (f *fields) value(name string) []byte {
	raw := f.take(name)
	if isNull(raw) {
		return nil
	}
	return raw
}

// required is value for fields that have no null: there null is an error.
func (f *fields) required(name string) []byte {
	raw := f.take(name)
	if raw != nil && isNull(raw) {
		f.fail(badRequest(name, "`%s` must not be null", name))
		return nil
	}
	return raw
}

// optInt returns an integer field, nil when absent or null.
func (f *fields) optInt(name string) *int64 {
	return f.parseInt(name, f.value(name))
}

// integer returns an integer field that must not be null.
func (f *fields) integer(name string, otherwise int64) int64 {
	if v := f.parseInt(name, f.required(name)); v != nil {
		return *v
	}
	return otherwise
}

func (f *fields) parseInt(name string, raw []byte) *int64 {
	if raw == nil {
		return nil
	}
	v, err := parseInt(name, raw)
	if err != nil {
		f.fail(err)
		return nil
	}
	return &v
}

// optFloat returns a finite number, nil when absent or null.
func (f *fields) optFloat(name string) *float64 {
	raw := f.value(name)
	if raw == nil {
		return nil
	}
	v, err := parseFloat(name, raw)
	if err != nil {
		f.fail(err)
		return nil
	}
	return &v
}

// optBool returns a boolean that may be null, which means otherwise.
func (f *fields) optBool(name string, otherwise bool) bool {
	return f.parseBool(name, f.value(name), otherwise)
}

// boolean returns a boolean that must not be null.
func (f *fields) boolean(name string, otherwise bool) bool {
	return f.parseBool(name, f.required(name), otherwise)
}

func (f *fields) parseBool(name string, raw []byte, otherwise bool) bool {
	if raw == nil {
		return otherwise
	}
	v, ok := laxBool(raw)
	if !ok {
		f.fail(badRequest(name, "`%s` must be a boolean, got %s", name, describe(raw)))
		return otherwise
	}
	return v
}

// optString returns a string, nil when absent or null.
func (f *fields) optString(name string) *string {
	raw := f.value(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '"' {
		f.fail(badRequest(name, "`%s` must be a string, got %s", name, describe(raw)))
		return nil
	}
	s := unquote(raw)
	return &s
}

// array returns the text of an array, nil when absent or null.
func (f *fields) array(name string) []byte { return f.composite(name, '[', "an array") }

// object returns the text of an object, nil when absent or null.
func (f *fields) object(name string) []byte { return f.composite(name, '{', "an object") }

func (f *fields) composite(name string, open byte, what string) []byte {
	raw := f.value(name)
	if raw == nil || raw[0] == open {
		return raw
	}
	f.fail(badRequest(name, "`%s` must be %s, got %s", name, what, describe(raw)))
	return nil
}

// tokens returns a list of token ids within the vocabulary, nil when absent or null.
func (f *fields) tokens(name string, most, vocab int) []int32 {
	raw := f.array(name)
	if raw == nil {
		return nil
	}
	ids := make([]int32, 0, 16)
	f.fail(eachElement(raw, func(i int, raw []byte) *apiError {
		if i == most {
			return badRequest(name, "`%s` has more than %d entries", name, most)
		}
		id, err := parseToken(name, raw, vocab)
		ids = append(ids, id)
		return err
	}))
	return ids
}

// strings returns a list of strings, nil when absent or null.
func (f *fields) strings(name string, raw []byte, most, bytes int) []string {
	if raw == nil {
		return nil
	}
	var list []string
	f.fail(eachElement(raw, func(i int, raw []byte) *apiError {
		if i == most {
			return badRequest(name, "`%s` has more than %d entries", name, most)
		}
		if raw[0] != '"' {
			return badRequest(name, "`%s[%d]` must be a string, got %s", name, i, describe(raw))
		}
		s := unquote(raw)
		if s == "" {
			return badRequest(name, "`%s` cannot contain an empty string", name)
		}
		if len(s) > bytes {
			return badRequest(name, "`%s[%d]` is longer than %d bytes", name, i, bytes)
		}
		list = append(list, s)
		return nil
	}))
	return list
}

// unsupported refuses a known field by name unless its value is neutral. null is always neutral.
func (f *fields) unsupported(name string, neutral ...string) {
	raw := f.value(name)
	if raw == nil {
		return
	}
	for _, n := range neutral {
		if string(raw) == n || laxEqual(raw, []byte(n)) {
			return
		}
	}
	f.fail(badRequest(name, "`%s` is not supported by this server", name))
}

// removed refuses a field of older versions and says what took its place.
func (f *fields) removed(name, instead string, neutral ...string) {
	before := f.err
	if f.unsupported(name, neutral...); f.err != before {
		f.err.message = "`" + name + "` was removed from the API: " + instead
	}
}

func isNull(raw []byte) bool { return string(raw) == "null" }

func parseInt(name string, raw []byte) (int64, *apiError) {
	v, fault := laxInt(raw)
	switch fault {
	case notOfType:
		return 0, badRequest(name, "`%s` must be an integer, got %s", name, shown(raw))
	case outOfRange:
		return 0, badRequest(name, "`%s` is out of the range of 64-bit integers: %s", name,
			clip(string(raw)))
	}
	return v, nil
}

func parseFloat(name string, raw []byte) (float64, *apiError) {
	v, fault := laxFloat(raw)
	switch fault {
	case notOfType:
		return 0, badRequest(name, "`%s` must be a number, got %s", name, shown(raw))
	case outOfRange:
		return 0, badRequest(name, "`%s` must be a finite number, got %s", name, clip(string(raw)))
	}
	return v, nil
}

// shown is how a value that has the wrong form appears in a message: numbers and texts as they are,
// the rest by type.
func shown(raw []byte) string {
	if raw[0] == '"' || raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		return clip(string(raw))
	}
	return describe(raw)
}

// parseToken reads a token id within the vocabulary.
func parseToken(name string, raw []byte, vocab int) (int32, *apiError) {
	id, err := parseInt(name, raw)
	if err != nil {
		return 0, err
	}
	if id < 0 || id >= int64(vocab) {
		return 0, badRequest(name, "token id %d in `%s` is out of vocabulary: ids are 0 to %d", id,
			name, vocab-1)
	}
	return int32(id), nil
}

// describe names the JSON type of a value.
func describe(raw []byte) string {
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

// ranged returns an integer within bounds; null means otherwise.
func (f *fields) ranged(name string, otherwise, low, high int64) int64 {
	v := f.optInt(name)
	if v == nil {
		return otherwise
	}
	if *v < low || *v > high {
		f.fail(badRequest(name, "`%s` must be between %d and %d, got %d", name, low, high, *v))
		return otherwise
	}
	return *v
}

// text returns a string that must be there.
func (f *fields) text(name string) string {
	v := f.optString(name)
	if v == nil {
		f.fail(badRequest(name, "`%s` is required", name))
		return ""
	}
	return *v
}

// metadata returns strings by their names, nil when absent or null.
func (f *fields) metadata() map[string]string {
	raw := f.object("metadata")
	if raw == nil {
		return nil
	}
	m := map[string]string{}
	if err := json.Unmarshal(raw, &m); err != nil {
		f.fail(badRequest("metadata", "the values of `metadata` must be strings"))
	}
	return m
}

// validID accepts what may go into response ids, headers and logs.
func validID(id string) bool {
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
