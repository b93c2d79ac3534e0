package values

import (
	"time"
)

const (
	// stepsPerLook is how many steps pass between two looks at Stop.
	stepsPerLook = 1024
	// BytesPerStep is how much text is scanned or copied for the price of one step.
	BytesPerStep = 64
	valueSize    = 64 // bytes charged for one element of a list or map
)

// Budget is what one rendering may still use, and its clock.
type Budget struct {
	Now       func() time.Time
	Stop      func() error // nil for none
	MaxOutput int
	Steps     int
	Memory    int
}

// Tick counts one step.
func (run *Budget) Tick() error {
	run.Steps--
	if run.Steps < 0 {
		return Errorf("template takes too many steps")
	}
	if run.Stop != nil && run.Steps%stepsPerLook == 0 {
		if err := run.Stop(); err != nil {
			return Errorf("rendering was stopped: %v", err)
		}
	}
	return nil
}

// Work counts the steps of handling n bytes of text.
func (run *Budget) Work(n int) error {
	run.Steps -= n / BytesPerStep
	return run.Tick()
}

// Charge counts n bytes of memory the template asks for, before they are allocated.
func (run *Budget) Charge(n int) error {
	run.Memory -= n
	if n < 0 || run.Memory < 0 {
		return Errorf("template uses too much memory")
	}
	return run.Work(n)
}

// ChargeValues counts a new list of n elements.
func (run *Budget) ChargeValues(n int) error {
	if n > run.Memory {
		return Errorf("template uses too much memory")
	}
	return run.Charge(n * valueSize)
}

// NewString charges for a text that is no larger than a small multiple of what it was made from.
func (run *Budget) NewString(s string) (Value, error) {
	if err := run.Charge(len(s)); err != nil {
		return Value{}, err
	}
	return Str(s), nil
}

// NewList charges for a list.
func (run *Budget) NewList(items []Value) (Value, error) {
	if err := run.ChargeValues(len(items)); err != nil {
		return Value{}, err
	}
	return NewList(items), nil
}
