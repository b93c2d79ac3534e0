package weights

// UnsoundError says that weights are no numbers, or none in the type that ranks compute in. It
// names the tensor.
type UnsoundError struct{ Err error }

func (e *UnsoundError) Error() string { return e.Err.Error() }

// Unwrap returns which tensor it is.
func (e *UnsoundError) Unwrap() error { return e.Err }
