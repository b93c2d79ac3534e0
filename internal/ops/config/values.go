package config

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// count is a number of things: 4096, 4k (4000), 4K (4096), and auto where that is allowed.
type count struct {
	value *int
	auto  bool
}

func (c *count) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return strconv.Itoa(*c.value)
}

// Type implements pflag.Value.
func (c *count) Type() string { return "int" }

// Set implements pflag.Value.
func (c *count) Set(s string) error {
	if c.auto && (s == "auto" || s == "-1") {
		*c.value = 0
		return nil
	}
	n, err := humanInt(s)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return fmt.Errorf("%q is not a number from 1 to %d", s, math.MaxInt32)
	}
	*c.value = int(n)
	return nil
}

// size is a number of bytes.
type size struct{ value *int64 }

func (c *size) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return strconv.FormatInt(*c.value, 10)
}

// Type implements pflag.Value.
func (c *size) Type() string { return "bytes" }

// Set implements pflag.Value.
func (c *size) Set(s string) error {
	n, err := humanInt(s)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a number of bytes such as 4294967296, 4G or 512M", s)
	}
	*c.value = n
	return nil
}

// decimalUnits and binaryUnits are vLLM's: 1k is 1000, 1K is 1024.
var (
	decimalUnits = map[byte]int64{'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}
	binaryUnits  = map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
)

// humanInt reads a number with an optional unit, as vLLM does: fractions are allowed before a
// decimal unit only.
func humanInt(s string) (int64, error) {
	if s == "" {
		return 0, strconv.ErrSyntax
	}
	digits, last := s[:len(s)-1], s[len(s)-1]
	if unit, ok := binaryUnits[last]; ok {
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || int64(n) > math.MaxInt64/unit {
			return 0, strconv.ErrRange
		}
		return int64(n) * unit, nil
	}
	unit, ok := decimalUnits[last]
	if !ok {
		return strconv.ParseInt(s, 10, 64)
	}
	if strings.Trim(digits, "0123456789.") != "" {
		return 0, strconv.ErrSyntax
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || v*float64(unit) >= math.MaxInt64 {
		return 0, strconv.ErrRange
	}
	// Rounded, because 25.6k is 25600 and not what is left of the nearest binary fraction.
	return int64(math.Round(v * float64(unit))), nil
}

// seconds is a time: 5 (seconds), 1.5, or with a unit as in 500ms and 2m.
type seconds struct{ value *time.Duration }

func (s *seconds) String() string {
	if s.value == nil || *s.value == 0 {
		return ""
	}
	return s.value.String()
}
func (s *seconds) Type() string { return "seconds" }
func (s *seconds) Set(text string) error {
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		if !(f > 0) || f > 1e9 {
			return fmt.Errorf("%q is not a positive number of seconds", text)
		}
		*s.value = time.Duration(f * float64(time.Second))
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a time such as 5, 1.5 or 500ms", text)
	}
	*s.value = d
	return nil
}

// ports is a range of ports: 20000-20100, or one port.
type ports struct{ value *[2]int }

func (p *ports) String() string {
	if p.value == nil || p.value[0] == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", p.value[0], p.value[1])
}
func (p *ports) Type() string { return "ports" }
func (p *ports) Set(text string) error {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 1 || last < first || last > 65535 {
		return fmt.Errorf("%q is not a range of ports such as 20000-20100", text)
	}
	*p.value = [2]int{first, last}
	return nil
}

// counts is a list of numbers of at least 1: 12,12.
type counts struct{ value *[]int }

func (c *counts) String() string {
	if c.value == nil {
		return ""
	}
	return Commas(*c.value)
}

// Type implements pflag.Value.
func (c *counts) Type() string { return "ints" }

// Set implements pflag.Value.
func (c *counts) Set(text string) error {
	var list []int
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("%q is not a list of numbers of at least 1 such as 12,12", text)
		}
		list = append(list, n)
	}
	*c.value = list
	return nil
}

// list is words: a,b or, as vLLM has it, a JSON list. The flag given again adds to it.
type list struct {
	value *[]string
	given bool
}

func (l *list) String() string {
	if l.value == nil {
		return ""
	}
	return strings.Join(*l.value, ",")
}

// Type implements pflag.Value.
func (l *list) Type() string { return "strings" }

// Set implements pflag.Value.
func (l *list) Set(text string) error {
	words := strings.Split(text, ",")
	if strings.HasPrefix(text, "[") {
		words = nil
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			return fmt.Errorf(`%q is not a list such as a,b or ["a","b"]`, text)
		}
	}
	if !l.given {
		*l.value, l.given = nil, true
	}
	*l.value = append(*l.value, words...)
	return nil
}

// object is the text of a JSON object.
type object struct{ value *string }

func (o *object) String() string {
	if o.value == nil {
		return ""
	}
	return *o.value
}

// Type implements pflag.Value.
func (o *object) Type() string { return "JSON" }

// Set implements pflag.Value.
func (o *object) Set(text string) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil || members == nil {
		return fmt.Errorf("%q is not a JSON object", text)
	}
	*o.value = text
	return nil
}

// keyFile adds the keys of a file. Its errors do not repeat them.
type keyFile struct{ keys *[]string }

func (k *keyFile) String() string { return "" }

// Type implements pflag.Value.
func (k *keyFile) Type() string { return "file" }

// maxKeyFile is the most bytes of a file of keys.
const maxKeyFile = 1 << 20

// Set implements pflag.Value.
func (k *keyFile) Set(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxKeyFile {
		return fmt.Errorf("%s has more than %d bytes", path, maxKeyFile)
	}
	before := len(*k.keys)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			*k.keys = append(*k.keys, line)
		}
	}
	if len(*k.keys) == before {
		return fmt.Errorf("%s has no key", path)
	}
	return nil
}

// Commas spells a list as flags have it.
func Commas(list []int) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
