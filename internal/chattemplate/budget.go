package chattemplate

import (
	"time"
)

const (
	bytesPerStep = 64 // text scanned or copied for the price of one step
	valueSize    = 64 // bytes charged for one element of a list or map
)

// budget is what one rendering may still use, and its clock.
type budget struct {
	now       func() time.Time
	maxOutput int
	steps     int
	memory    int
}

// tick counts one step.
func (run *budget) tick() error {
	run.steps--
	if run.steps < 0 {
		return errorf("template takes too many steps")
	}
	return nil
}

// work counts the steps of handling n bytes of text.
func (run *budget) work(n int) error {
	run.steps -= n / bytesPerStep
	return run.tick()
}

// charge counts n bytes of memory the template asks for, before they are allocated.
func (run *budget) charge(n int) error {
	run.memory -= n
	if n < 0 || run.memory < 0 {
		return errorf("template uses too much memory")
	}
	return run.work(n)
}

// chargeValues counts a new list of n elements.
func (run *budget) chargeValues(n int) error {
	if n > run.memory {
		return errorf("template uses too much memory")
	}
	return run.charge(n * valueSize)
}

// newString charges for a text that is no larger than a small multiple of what it was made from.
func (run *budget) newString(s string) (Value, error) {
	if err := run.charge(len(s)); err != nil {
		return Value{}, err
	}
	return strValue(s), nil
}

func (run *budget) newList(items []Value) (Value, error) {
	if err := run.chargeValues(len(items)); err != nil {
		return Value{}, err
	}
	return listValue(items), nil
}
