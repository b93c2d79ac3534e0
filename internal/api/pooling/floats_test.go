package pooling

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
)

// TestFloatsReadBack: numbers of an answer are the very float32.
func TestFloatsReadBack(t *testing.T) {
	v := floats{0, -1, 1e-30, math.MaxFloat32, 0.1, float32(math.Pi), 3e-45}
	b, err := v.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var back []float32
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, []float32(v)) {
		t.Errorf("%s: %v, %v", b, back, err)
	}
}
