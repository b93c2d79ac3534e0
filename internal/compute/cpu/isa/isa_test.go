package isa

import (
	"strings"
	"testing"
)

func TestParseRoundTrip(t *testing.T) {
	for i := Portable; i < count; i++ {
		got, err := Parse(i.String())
		if err != nil || got != i {
			t.Errorf("Parse(%q) = %v, %v; want %v", i.String(), got, err, i)
		}
	}
	for _, name := range []string{"", "auto"} {
		if got, err := Parse(name); err != nil || got != Best() {
			t.Errorf("Parse(%q) = %v, %v; want the best, %v", name, got, err, Best())
		}
	}
	for _, name := range []string{"AVX2", "sse", "avx2 "} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %v, want an error", name, got)
		}
	}
	if got := count.String(); got != "isa(5)" {
		t.Errorf("String of an unknown set = %q", got)
	}
}

func TestLevelsIncludeLowerOnes(t *testing.T) {
	if !Available(Portable) {
		t.Fatal("portable must run everywhere")
	}
	if Available(count) {
		t.Error("an unknown instruction set is reported as available")
	}
	for i := AVX2; i < count; i++ {
		if Available(i) && !Available(i-1) {
			t.Errorf("%v is available but %v is not", i, i-1)
		}
	}
	all := All()
	if last := all[len(all)-1]; last != Best() && last != AVX512BF16 {
		t.Errorf("last of All() = %v, Best() = %v", last, Best())
	}
	for _, i := range all {
		if !Available(i) {
			t.Errorf("All() lists %v, which is not available", i)
		}
	}
}

// TestReason wants the level named that is passed over, where it is the highest.
func TestReason(t *testing.T) {
	for _, c := range []struct {
		highest ISA
		amd     bool
		best    ISA
		says    string
	}{
		{Portable, false, Portable, "highest"}, {AVX2, true, AVX2, "highest"},
		{AVX512, false, AVX512, "highest"}, {AVX512BF16, false, AVX512, "avx512bf16"},
		{AVX512BF16, true, AVX512BF16, "highest"}, {AMX, false, AMX, "highest"},
	} {
		var of []ISA
		for i := Portable; i <= c.highest; i++ {
			of = append(of, i)
		}
		got, why := best(of, c.amd), reason(of, c.amd)
		if got != c.best || !strings.Contains(why, c.says) {
			t.Errorf("up to %v, of AMD's %v: %v, as %s", c.highest, c.amd, got, why)
		}
	}
}
