package model

import (
	"errors"
	"math"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// TestRopeFrequencies compares with the functions of transformers 5.23's modeling_rope_utils.py,
// run on NumPy in float32 with each power rounded from float64, and division by a tensor as PyTorch
// does it. The values are bit patterns.
func TestRopeFrequencies(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		want   []uint32
		scale  float64
	}{
		{"default", Config{HeadDim: 16, RopeTheta: 1e4, Rope: Rope{Type: "default"}}, []uint32{
			0x3f800000, 0x3ea1e89b, 0x3dcccccd, 0x3d0186e3, 0x3c23d70a, 0x3b4f3e38, 0x3a83126f,
			0x39a5cb60}, 1.0},
		{"linear", Config{HeadDim: 16, RopeTheta: 1e4, Rope: Rope{Type: "linear", Factor: 2.5}},
			[]uint32{
				0x3ecccccd, 0x3e0186e2, 0x3d23d70a, 0x3c4f3e38, 0x3b83126e, 0x3aa5cb60, 0x39d1b718,
				0x3904a2b3}, 1.0},
		{"llama3 tiny", Config{HeadDim: 16, RopeTheta: 5e5, Rope: Rope{Type: "llama3", Factor: 8,
			LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 64}}, []uint32{
			0x3f800000, 0x3da29e0c, 0x3b9a08c8, 0x3a6ef74f, 0x39395d21, 0x380fc8f8, 0x36df10c4,
			0x35ad07a7}, 1.0},
		{"llama3.1", Config{HeadDim: 128, RopeTheta: 5e5, Rope: Rope{Type: "llama3", Factor: 8,
			LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 8192}}, []uint32{
			0x3f800000, 0x3f508ac1, 0x3f29e1c6, 0x3f0a6384, 0x3ee177bc, 0x3eb7ab7d, 0x3e959ee3,
			0x3e73c461, 0x3e4693b0, 0x3e21c3a0,
			0x3e03c6a0, 0x3dd6b19c, 0x3daee4ad, 0x3d8e7898, 0x3d681e67, 0x3d3d1684, 0x3d1a08c8,
			0x3cfaf53f, 0x3ccc6f49, 0x3ca68939, 0x3c87a9c3, 0x3c5d06ec, 0x3c340d6d, 0x3c12ac7f,
			0x3beef74f, 0x3bc2aa76, 0x3b9e9402, 0x3b812e35, 0x3b527720, 0x3b0dfd06, 0x3ab3d11d,
			0x3a60979e, 0x3a0995d2, 0x39a3f108, 0x393b2dd2, 0x38c86886, 0x38a3418d, 0x3884fdbf,
			0x3858ac81, 0x38308199, 0x380fc8f8, 0x37ea426f, 0x37bed4f4, 0x379b7475, 0x377d45c3,
			0x374e51f5, 0x3728126b, 0x3708ea0f, 0x36df10c4, 0x36b5b687, 0x369406cb, 0x36712b80,
			0x36447610, 0x36200a69, 0x36025f34, 0x35d46808, 0x35ad07a7, 0x358cf400, 0x3565a54d,
			0x353b12c7, 0x351864a7, 0x34f848c2, 0x34ca41b0, 0x34a4c2ff}, 1.0},
		{"qwen yarn", Config{HeadDim: 128, RopeTheta: 1e6, Rope: Rope{Type: "yarn", Factor: 4,
			OriginalMaxPositions: 32768, BetaFast: 32, BetaSlow: 1, Truncate: true}}, []uint32{
			0x3f800000, 0x3f4e4bad, 0x3f263de0, 0x3f05f6ef, 0x3ed7e89b, 0x3eadfcff, 0x3e8c3504,
			0x3e61f835, 0x3e361887, 0x3e12bd91,
			0x3dec7fd6, 0x3dbe94c6, 0x3d99940d, 0x3d778513, 0x3d47763f, 0x3d20bc1d, 0x3d0186e3,
			0x3cd0c1a8, 0x3ca8398b, 0x3c879008, 0x3c5a7bf2, 0x3c301052, 0x3c0de12d, 0x3be4aa46,
			0x3bb02377, 0x3b876388, 0x3b4fa550, 0x3b1ed248, 0x3af241df, 0x3ab82bc0, 0x3a8b8207,
			0x3a527db8, 0x3a1e0eb2, 0x39ec1968, 0x39af3d02, 0x39811c3e, 0x393c93be, 0x39083e37,
			0x38c23e9a, 0x38881d0a, 0x383a7753, 0x38164324, 0x37f22ce2, 0x37c327b5, 0x379d43a4,
			0x377d75d4, 0x374c3fbe, 0x372497ab, 0x3704a2b2, 0x36d5c441, 0x36ac431d, 0x368ad0ed,
			0x365fba4f, 0x36344a0e, 0x361148e3, 0x35ea2732, 0x35bcb0c1, 0x35980e02, 0x35751070,
			0x35457bab, 0x351f23e4, 0x35003dec, 0x34ceaf79, 0x34a68e4c}, 1.138629436111989},
		{"deepseek yarn", Config{HeadDim: 64, RopeTheta: 1e4, Rope: Rope{Type: "yarn", Factor: 40,
			OriginalMaxPositions: 4096, BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 0.707,
			Truncate: true}}, []uint32{
			0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887,
			0x3e088d77, 0x3dcccccd, 0x3d99940d,
			0x3d6655c2, 0x3d1fc5ba, 0x3cdc321b, 0x3c968dc3, 0x3c4bf283, 0x3c088d77, 0x3bb43959,
			0x3b697066, 0x3b136a16, 0x3ab3a2cd, 0x3a4f3e37, 0x39d99312, 0x393a7753, 0x380bd471,
			0x37d1b717, 0x379d43a3, 0x376bdcf0, 0x3730df51, 0x3704a2b3, 0x36c6ecdd, 0x36952c42,
			0x365fba4f}, 1.0857263992561355},
		{"yarn untruncated", Config{HeadDim: 32, RopeTheta: 150000, Rope: Rope{Type: "yarn",
			Factor: 32, OriginalMaxPositions: 4096, BetaFast: 32, BetaSlow: 1,
			AttentionFactor: 1.25}}, []uint32{
			0x3f800000, 0x3ef316a2, 0x3e66d3fa, 0x3ddb2f9e, 0x3d502194, 0x3c9e6470, 0x3bdea840,
			0x3b093803, 0x39ef543c, 0x3820adc6,
			0x37989328, 0x3710e12c, 0x3689928c, 0x3602a245, 0x35781728, 0x34eb93eb}, 1.25},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inv, scale, err := tt.config.RopeFrequencies()
			if err != nil {
				t.Fatal(err)
			}
			if len(inv) != len(tt.want) || math.Abs(scale-tt.scale) > 1e-15 {
				t.Fatalf("%d frequencies, factor %v; want %d, %v", len(inv), scale, len(tt.want),
					tt.scale)
			}
			for i, want := range tt.want {
				if got := math.Float32bits(inv[i]); got != want {
					t.Errorf("frequency %d is %v (%#08x), want %v", i, inv[i], got,
						math.Float32frombits(want))
				}
			}
		})
	}
}

// TestRopeByHand checks what follows from the definitions without the reference.
func TestRopeByHand(t *testing.T) {
	c := Config{HeadDim: 4, RopeTheta: 10000, Rope: Rope{Type: "default"}}
	if inv, _, err := c.RopeFrequencies(); err != nil || inv[0] != 1 || inv[1] != 0.01 {
		t.Errorf("default: %v, %v; want 1 and 10000^-1/2", inv, err)
	}
	c.Rope = Rope{Type: "linear", Factor: 4}
	if inv, _, err := c.RopeFrequencies(); err != nil || inv[0] != 0.25 || inv[1] != 0.0025 {
		t.Errorf("linear: %v, %v; want a quarter of the default", inv, err)
	}
	// Wavelengths are 2π = 6.3 and 200π = 628. Above 64/1 is divided by 8; below 64/4 is kept.
	c.Rope = Rope{Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4,
		OriginalMaxPositions: 64}
	if inv, _, err := c.RopeFrequencies(); err != nil || inv[0] != 1 || inv[1] != 0.00125 {
		t.Errorf("llama3: %v, %v; want the first kept and the second divided", inv, err)
	}
	// A pre-training length in which every pair turns less than once is interpolated throughout,
	// but for the first pair, which the reference never lets ramp below 0.
	c.Rope = Rope{Type: "yarn", Factor: 2, OriginalMaxPositions: 1, BetaFast: 32, BetaSlow: 1,
		Truncate: true}
	inv, scale, err := c.RopeFrequencies()
	if err != nil || inv[1] != 0.005 || math.Abs(scale-(1+0.1*math.Ln2)) > 1e-15 {
		t.Errorf("yarn: %v, %v, %v", inv, scale, err)
	}
	c.Rope = Rope{Type: "yarn", Factor: 1, OriginalMaxPositions: 100, BetaFast: 32, BetaSlow: 1}
	if _, scale, err := c.RopeFrequencies(); err != nil || scale != 1 {
		t.Errorf("yarn of factor 1: %v, %v", scale, err)
	}
}

func TestRopeErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   error
	}{
		"no rope": {Config{HeadDim: 4, RopeTheta: 10000}, checkpoint.ErrUnsupported},
		"odd":     {Config{HeadDim: 3, RopeTheta: 10000, Rope: Rope{Type: "default"}}, nil},
		"underflow": {Config{HeadDim: 4, RopeTheta: 1e300, Rope: Rope{Type: "default"}},
			checkpoint.ErrMalformed},
		"tiny scale": {Config{HeadDim: 4, RopeTheta: 10000, Rope: Rope{Type: "linear",
			Factor: 1e-300}}, checkpoint.ErrMalformed},
	} {
		inv, _, err := tt.config.RopeFrequencies()
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, %v", name, inv, err)
		}
	}
}
