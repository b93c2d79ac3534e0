package compute

import "testing"

func TestBytesPerBlock(t *testing.T) {
	for _, c := range []struct {
		shape CacheShape
		want  int
	}{
		{CacheShape{Layers: 32, Blocks: 7, BlockSize: 16, KVHeads: 8, HeadDim: 128,
			DType: BFloat16}, 32 * 2 * 16 * 8 * 128 * 2},
		{CacheShape{Layers: 1, Blocks: 7, BlockSize: 32, KVHeads: 3, HeadDim: 64, DType: Float32},
			2 * 32 * 3 * 64 * 4},
		{CacheShape{Layers: 2, Blocks: 7, BlockSize: 16, KVHeads: 1, HeadDim: 20, DType: Float16},
			2 * 2 * 16 * 32 * 2},
	} {
		if got := c.shape.BytesPerBlock(); got != c.want {
			t.Errorf("BytesPerBlock of %+v is %d, not %d", c.shape, got, c.want)
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
	if got := dtypes.String(); got != "dtype(3)" {
		t.Error(got)
	}
}
