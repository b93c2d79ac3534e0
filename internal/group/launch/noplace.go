package launch

// NoPlace says that a start was given up because there was no place for its ranks in the time that
// it had. It is wrapped by what Launch returns.
type NoPlace struct {
	// Room is for how many of the ranks there was a place, Missing what the others lack.
	Room    int
	Missing string
	Err     error
}

func (e *NoPlace) Error() string { return e.Err.Error() }

// Unwrap returns the error with all that is known.
func (e *NoPlace) Unwrap() error { return e.Err }
