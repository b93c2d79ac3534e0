// Package figure has numbers as a log shows them: with as many digits as mean something to people,
// and as numbers in JSON.
package figure

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
)

// Decimal is a number with so many digits behind the point.
type Decimal struct {
	Value  float64
	Digits int
}

// Seconds is a time in seconds, with so many digits behind the point.
func Seconds(d time.Duration, digits int) Decimal { return Decimal{d.Seconds(), digits} }

// String spells the number.
func (d Decimal) String() string { return strconv.FormatFloat(d.Value, 'f', d.Digits, 64) }

// MarshalJSON makes a number of it; null is what is none.
func (d Decimal) MarshalJSON() ([]byte, error) {
	if math.IsNaN(d.Value) || math.IsInf(d.Value, 0) {
		return []byte("null"), nil
	}
	return []byte(d.String()), nil
}

// Numbers are whole numbers: 2,3 in text, a list in JSON.
type Numbers []int

// String joins them by commas.
func (n Numbers) String() string {
	words := make([]string, len(n))
	for i, v := range n {
		words[i] = strconv.Itoa(v)
	}
	return strings.Join(words, ",")
}

// MarshalJSON makes a list of them, an empty one of none.
func (n Numbers) MarshalJSON() ([]byte, error) { return json.Marshal(append([]int{}, n...)) }
