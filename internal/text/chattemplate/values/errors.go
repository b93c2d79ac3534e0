package values

import (
	"errors"
	"fmt"
)

// Error is a template that does not parse or a rendering that failed.
type Error struct {
	Line int // line of the template, from 1; 0 where unknown
	// Column is the byte of that line, from 1; 0 where unknown, as in a rendering
	Column int
	Msg    string // what is wrong; the template's own text when Raised
	// the template called raise_exception: the conversation, not the template, is at fault
	Raised bool
}

// Error returns the message with the line.
func (e *Error) Error() string {
	if e.Line == 0 {
		return "chat template: " + e.Msg
	}
	if e.Column > 0 {
		return fmt.Sprintf("chat template line %d, column %d: %s", e.Line, e.Column, e.Msg)
	}
	return fmt.Sprintf("chat template line %d: %s", e.Line, e.Msg)
}

// Errorf makes an error without a line.
func Errorf(format string, args ...any) *Error { return &Error{Msg: fmt.Sprintf(format, args...)} }

// ErrorAt makes an error at a line.
func ErrorAt(line int, format string, args ...any) *Error {
	return &Error{Line: line, Msg: fmt.Sprintf(format, args...)}
}

// AtColumn gives an error on that line, without a column, its column.
func AtColumn(err error, line, column int) error {
	var e *Error
	if errors.As(err, &e) && e.Line == line && e.Column == 0 {
		e.Column = column
	}
	return err
}

func errNesting() *Error { return Errorf("value is nested too deeply") }

// AtLine gives an error that has no line the line of the statement or call it came from.
func AtLine(err error, line int) error {
	var e *Error
	if errors.As(err, &e) && e.Line == 0 {
		e.Line = line
	}
	return err
}

// maxValueDepth bounds nested lists and maps that are printed, compared or serialised.
const maxValueDepth = 500
