package compute

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/grouping"
)

func TestBytesPerBlock(t *testing.T) {
	for _, c := range []struct {
		shape CacheShape
		want  int
	}{
		{CacheShape{Layers: []CacheLayer{{Heads: 8, Dim: 128}, {Heads: 8, Dim: 128, Window: 64}},
			Blocks: 7, BlockSize: 16, DType: BFloat16}, 2 * 2 * 16 * 8 * 128 * 2},
		{CacheShape{Layers: []CacheLayer{{Heads: 3, Dim: 64}}, Blocks: 7, BlockSize: 32,
			DType: Float32}, 2 * 32 * 3 * 64 * 4},
		{CacheShape{Layers: []CacheLayer{{Heads: 1, Dim: 20}, {Heads: 5, Dim: 64}}, Blocks: 7,
			BlockSize: 16, DType: Float16}, 2 * 16 * (32 + 5*64) * 2},
		{CacheShape{Layers: []CacheLayer{{Kind: Latent, Heads: 1, Dim: 576, Values: 512}},
			Blocks: 7, BlockSize: 16, DType: BFloat16}, 16 * 576 * 2},
	} {
		if got := c.shape.BytesPerBlock(); got != c.want {
			t.Errorf("BytesPerBlock of %+v is %d, not %d", c.shape, got, c.want)
		}
	}
}

// TestLayerCheck wants each layer that no cache can have to be refused by what is wrong with it.
func TestLayerCheck(t *testing.T) {
	for want, l := range map[string]CacheLayer{
		"":                             {Heads: 2, Dim: 64, Window: 7},
		"kind 9":                       {Kind: 9, Heads: 1, Dim: 64},
		"0 heads":                      {Dim: 64},
		"dimension 63":                 {Heads: 1, Dim: 63},
		"window -1":                    {Heads: 1, Dim: 64, Window: -1},
		"value dimension 4":            {Heads: 1, Dim: 64, Values: 4},
		"2 latents":                    {Kind: Latent, Heads: 2, Dim: 64, Values: 4},
		"1 latents of dimension 64, 0": {Kind: Latent, Heads: 1, Dim: 64},
		"dimension 0":                  {Kind: State, Heads: 1},
		"window 4":                     {Kind: State, Heads: 1, Dim: 3, Window: 4},
		"of 0 requests":                {Kind: State, Heads: 2, Dim: 3},
		"64, 66 of it":                 {Kind: Latent, Heads: 1, Dim: 64, Values: 66},
	} {
		s := CacheShape{Layers: []CacheLayer{{Heads: 1, Dim: 2}, l}, Blocks: 1, BlockSize: 16}
		err := s.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, not %q", l, err, want)
		}
	}
}

func TestWindow(t *testing.T) {
	for _, c := range []struct {
		windows []int
		want    int
	}{{nil, 0}, {[]int{64}, 64}, {[]int{64, 16, 128}, 128}, {[]int{64, 0}, 0}} {
		layers := []CacheLayer{{Kind: State, Heads: 2, Dim: 7}}
		for _, n := range c.windows {
			layers = append(layers, CacheLayer{Heads: 1, Dim: 2, Window: n})
		}
		if got := Window(layers, grouping.Groups{}); got != c.want {
			t.Errorf("layers with windows of %v read %d positions, not %d", c.windows, got, c.want)
		}
	}
}

func TestDType(t *testing.T) {
	for _, c := range []struct {
		d     DType
		names []string
		size  int
	}{
		{BFloat16, []string{"bfloat16", "bf16"}, 2},
		{Float16, []string{"float16", "half", "fp16"}, 2},
		{Float32, []string{"float32", "float", "fp32"}, 4},
	} {
		for _, name := range c.names {
			if got, err := ParseDType(name); got != c.d || err != nil {
				t.Errorf("%q is %v, %v", name, got, err)
			}
		}
		if c.d.String() != c.names[0] || c.d.Size() != c.size {
			t.Errorf("%v has %d bytes", c.d, c.d.Size())
		}
	}
	if _, err := ParseDType("int8"); err == nil {
		t.Error("int8 is a dtype")
	}
	for name, want := range map[string]DType{"auto": Float16, "bfloat16": BFloat16, "int8": Int8,
		"fp8_e4m3": E4M3, "fp8_per_token_head": E4M3} {
		if got, err := ParseCacheDType(name, Float16); got != want || err != nil {
			t.Errorf("a cache of %q is of %v, %v", name, got, err)
		}
	}
	if _, err := ParseCacheDType("fp8_e5m2", Float16); err == nil {
		t.Error("fp8_e5m2 is a dtype of a cache")
	}
	if got := dtypes.String(); got != "dtype(5)" {
		t.Error(got)
	}
}
