package engine

import "fmt"

// Refused is why a server cannot be scaled as it was asked to be. What it had goes on.
type Refused struct{ Reason string }

func (e *Refused) Error() string { return e.Reason }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }
