package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Path names a part of a request's body, as errors do: input[3].content[0].
type Path string

// Index is the path of an element of the array at p.
func (p Path) Index(i int) Path { return p + "[" + Path(strconv.Itoa(i)) + "]" }

// Member is the path of a member of the object at p.
func (p Path) Member(name string) Path { return p + "." + Path(name) }

// field is the member of the body that the part is in.
func (p Path) field() string {
	name, _, _ := strings.Cut(string(p), "[")
	return name
}

// Bad is a 400 that names the part.
func (p Path) Bad(format string, args ...any) *Error {
	return BadRequest(p.field(), "`%s` %s", p, fmt.Sprintf(format, args...))
}
