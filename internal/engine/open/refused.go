package open

import "fmt"

// Refused is why a server cannot be scaled as it was asked to be. What it had goes on.
type Refused struct{ Reason string }

func (e *Refused) Error() string { return e.Reason }

// Refuse is a *Refused with a reason.
func Refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }
