package openai

import (
	"fmt"
	"strconv"
	"strings"
)

// path names a part of a request's body, as errors do: input[3].content[0].
type path string

func (p path) index(i int) path        { return p + "[" + path(strconv.Itoa(i)) + "]" }
func (p path) member(name string) path { return p + "." + path(name) }

// field is the member of the body that the part is in.
func (p path) field() string {
	name, _, _ := strings.Cut(string(p), "[")
	return name
}

// bad is a 400 that names the part.
func (p path) bad(format string, args ...any) *apiError {
	return badRequest(p.field(), "`%s` %s", p, fmt.Sprintf(format, args...))
}
