package checkpoint

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/half"
)

func dummyValues(t *testing.T, tensor Tensor) []float64 {
	t.Helper()
	values := make([]float64, tensor.Elements())
	for i := range values {
		at := tensor.Data[i*tensor.DType.Size():]
		switch tensor.DType {
		case BF16:
			values[i] = float64(half.FromBF16(binary.LittleEndian.Uint16(at)))
		case F16:
			values[i] = float64(half.FromF16(binary.LittleEndian.Uint16(at)))
		case F32:
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		}
	}
	return values
}

func TestDummy(t *testing.T) {
	specs := []Spec{{"w", []int{100, 33}}, {"b", []int{7}}, {"empty", []int{0, 3}}, {"scalar", nil}}
	for _, d := range []DType{BF16, F16, F32} {
		t.Run(d.String(), func(t *testing.T) {
			c, err := Dummy(specs, 1, d)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if want := int64((3300 + 7 + 1) * d.Size()); c.Bytes() != want {
				t.Errorf("Bytes is %d, want %d", c.Bytes(), want)
			}
			w, err := c.Tensor("w")
			if err != nil {
				t.Fatal(err)
			}
			values := dummyValues(t, w)
			var sum, squares float64
			for _, v := range values {
				if math.Abs(v) > 1e-3*(1+1.0/256) {
					t.Fatalf("value %v is out of range", v)
				}
				sum += v
				squares += v * v
			}
			n := float64(len(values))
			// A uniform distribution over ±s has mean 0 and variance s²/3; four standard errors are
			// allowed.
			if mean := sum / n; math.Abs(mean) > 4*1e-3/math.Sqrt(3*n) {
				t.Errorf("mean %v", mean)
			}
			if variance := squares / n; math.Abs(variance-1e-6/3) > 0.1*1e-6/3 {
				t.Errorf("variance %v, want %v", variance, 1e-6/3)
			}
			again, _ := Dummy([]Spec{specs[0]}, 1, d)
			defer again.Close()
			other, _ := Dummy(specs, 2, d)
			defer other.Close()
			same, _ := again.Tensor("w")
			differs, _ := other.Tensor("w")
			if !slices.Equal(same.Data, w.Data) || slices.Equal(differs.Data, w.Data) {
				t.Error("values do not follow from the seed and the name alone")
			}
			b, _ := c.Tensor("b")
			if slices.Equal(b.Data, w.Data[:len(b.Data)]) {
				t.Error("two tensors have the same values")
			}
		})
	}
}

// TestDummyTypes holds the three types to the same values up to their rounding.
func TestDummyTypes(t *testing.T) {
	values := map[DType][]float64{}
	for _, d := range []DType{BF16, F16, F32} {
		c, err := Dummy([]Spec{{"w", []int{4099}}}, 3, d)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w, _ := c.Tensor("w")
		values[d] = dummyValues(t, w)
	}
	for i, exact := range values[F32] {
		if e := math.Abs(values[BF16][i] - exact); e > math.Abs(exact)/256 {
			t.Fatalf("element %d: BF16 %v, F32 %v", i, values[BF16][i], exact)
		}
		if e := math.Abs(values[F16][i] - exact); e > max(math.Abs(exact)/2048, 0x1p-25) {
			t.Fatalf("element %d: F16 %v, F32 %v", i, values[F16][i], exact)
		}
	}
}

func TestDummyRelease(t *testing.T) {
	c, err := Dummy([]Spec{{"w", []int{64, 1024}}, {"v", []int{3}}}, 1, BF16)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, _ := c.Tensor("w")
	want := slices.Clone(first.Data)
	second, _ := c.Tensor("w")
	c.Release(first)
	if !slices.Equal(second.Data, want) {
		t.Fatal("a release took the values from another user")
	}
	c.Release(second)
	if slices.Equal(second.Data, want) {
		t.Error("the last release kept the values in memory")
	}
	c.Release(second)
	third, _ := c.Tensor("w")
	if !slices.Equal(third.Data, want) {
		t.Error("the values changed after a release")
	}
}

func TestDummyErrors(t *testing.T) {
	var many []Spec
	for i := range 16 {
		many = append(many, Spec{strconv.Itoa(i), []int{1 << 58}})
	}
	tests := []struct {
		name  string
		specs []Spec
		dtype DType
		want  string
	}{
		{"type", nil, I64, "cannot be I64"},
		{"twice", []Spec{{"w", nil}, {"w", nil}}, BF16, `tensor "w" occurs twice`},
		{"negative", []Spec{{"w", []int{-1}}}, BF16, `tensor "w": dimension -1 is negative`},
		{"overflow", []Spec{{"w", []int{1 << 40, 1 << 40}}}, BF16, "overflows"},
		{"sum overflows", many, BF16, "total size overflows"},
		{"too large", []Spec{{"w", []int{1 << 50}}}, F32, "map 4503599627370496 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Dummy(tt.specs, 0, tt.dtype); err == nil || !strings.Contains(err.Error(),
				tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDummyEmpty(t *testing.T) {
	c, err := Dummy(nil, 0, BF16)
	if err != nil || len(c.Names()) != 0 || c.Close() != nil {
		t.Errorf("%v", err)
	}
}

func BenchmarkDummyBF16(b *testing.B) {
	data := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		fillUniform(data, 1, BF16)
	}
}
