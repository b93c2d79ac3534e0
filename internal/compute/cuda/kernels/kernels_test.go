package kernels

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestF16 wants the kernel of float16 for each of bfloat16, and others as they are.
func TestF16(t *testing.T) {
	for k := range Count {
		if want := strings.Replace(k.Name(), "bf16", "f16", 1); k.F16().Name() != want {
			t.Errorf("kernel %s is %s in float16", k.Name(), k.F16().Name())
		}
	}
}

// TestCubins wants all files for each architecture that GPUs have, the best of those that they
// execute, and none for others.
func TestCubins(t *testing.T) {
	products := map[string][]byte{} // by architecture
	for _, c := range []struct {
		major, minor int
		as           string
	}{{7, 5, ""}, {8, 0, "8.0"}, {8, 6, "8.6"}, {8, 7, "8.6"}, {8, 9, "8.9"}, {9, 0, "9.0"},
		{10, 0, "10.0"}, {10, 3, ""}, {12, 0, "12.0"}, {12, 1, ""}} {
		list, err := Cubins(c.major, c.minor)
		if err != nil {
			t.Fatal(err)
		}
		if c.as == "" {
			if len(list) > 0 {
				t.Errorf("%d.%d has %d cubins", c.major, c.minor, len(list))
			}
			continue
		}
		files := Files(c.major, c.minor)
		for _, file := range files {
			if !bytes.HasPrefix(list[file], []byte("\x7fELF")) {
				t.Errorf("%d.%d: no cubin of %s", c.major, c.minor, file)
			}
		}
		if len(list) != len(files) {
			t.Errorf("%d.%d has %d cubins", c.major, c.minor, len(list))
		}
		own := list["gemm"]
		if want := products[c.as]; want != nil && !bytes.Equal(own, want) {
			t.Errorf("%d.%d has not the cubins of %s", c.major, c.minor, c.as)
		}
		for as, other := range products {
			if as != c.as && slices.Equal(own, other) {
				t.Errorf("%d.%d has the cubins of %s", c.major, c.minor, as)
			}
		}
		products[c.as] = own
	}
}
