package compute

import (
	"math"
	"strings"
	"testing"
)

func TestNumber(t *testing.T) {
	for code, want := range map[byte]float32{0: 0, 0x38: 1, 0xb8: -1, 0x7e: 448, 0x01: 1.0 / 512,
		0x08: 1.0 / 64, 0x40: 2, 0x3c: 1.5} {
		if got := (&Codes{Type: CodeE4M3}).Number(code); got != want {
			t.Errorf("e4m3 %#x is %v, not %v", code, got, want)
		}
	}
	if got := (&Codes{Type: CodeE4M3}).Number(0xff); !math.IsNaN(float64(got)) {
		t.Errorf("e4m3 0xff is %v, not NaN", got)
	}
	if got := (&Codes{Type: Code8}).Number(0x80); got != -128 {
		t.Errorf("integer 0x80 is %v", got)
	}
	if got := (&Codes{Values: [16]float32{3: 7}}).Number(3); got != 7 {
		t.Errorf("code 3 is %v", got)
	}
}

func TestCodesCheck(t *testing.T) {
	good := Codes{Rows: 2, Cols: 3, Group: 2, Lead: 1, Code: make([]byte, 6),
		Scale: make([]float32, 4)}
	if err := good.Check(); err != nil || good.Groups() != 2 {
		t.Errorf("%v, %d groups", err, good.Groups())
	}
	for want, change := range map[string]func(*Codes){
		"code(9)":          func(c *Codes) { c.Type = 9 },
		"shape 0 x 3":      func(c *Codes) { c.Rows = 0 },
		"groups of 2, 2":   func(c *Codes) { c.Lead = 2 },
		"5 codes":          func(c *Codes) { c.Code = make([]byte, 5) },
		"3 scales":         func(c *Codes) { c.Scale = make([]float32, 3) },
		"1 offsets":        func(c *Codes) { c.Offset = make([]float32, 1) },
		"order of 1 colum": func(c *Codes) { c.Order = make([]int32, 1) },
		"column 3 of 3":    func(c *Codes) { c.Order = []int32{0, 3, 1} },
		"columns 2 to 5":   func(c *Codes) { c.From, c.Of = 2, 4 },
		"columns 1 to 4":   func(c *Codes) { c.From = 1 },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
