package spin

import (
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	began := time.Now()
	Pause(1)
	Pause(100_000)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("100,000 pauses take %v", d)
	}
}
