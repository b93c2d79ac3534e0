package pooling

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
)

// TestFloatsReadBack: numbers of an answer are the very float32, and are written once: what a
// json.Marshaler writes is read again, number by number.
func TestFloatsReadBack(t *testing.T) {
	list := []float32{0, -1, 1e-30, math.MaxFloat32, 0.1, float32(math.Pi), 3e-45}
	v := (&embeddingRequest{}).encode(list)
	if _, twice := v.(json.Marshaler); twice {
		t.Errorf("%T is a json.Marshaler", v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back []float32
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, list) {
		t.Errorf("%s: %v, %v", b, back, err)
	}
}
