package batch

import (
	"errors"
	"fmt"
)

// done are the rows that have been answered, by their number: the sum of the row, 0 for those that
// have not. Four bytes a row, whatever is in it.
type done []uint32

// errOther says that a row is not the one that was answered under its number.
var errOther = errors.New("is the answer to another input")

// add notes the row that an outcome answers.
func (d *done) add(o *outcome) error {
	number, sum, ok := parseID(o.ID)
	if !ok || number < 1 || sum == 0 {
		return fmt.Errorf("its id %.80q is none of a batch of this program", o.ID)
	}
	for number > len(*d) {
		*d = append(*d, make([]uint32, max(1024, len(*d)/2, number-len(*d)))...)
	}
	if (*d)[number-1] != 0 {
		return fmt.Errorf("row %d is answered twice", number)
	}
	(*d)[number-1] = sum
	return nil
}

// has says whether a row has been answered.
func (d done) has(number int, sum uint32) (bool, error) {
	if number > len(d) || d[number-1] == 0 {
		return false, nil
	}
	if d[number-1] != sum {
		return false, fmt.Errorf("row %d of the output %w", number, errOther)
	}
	return true, nil
}
