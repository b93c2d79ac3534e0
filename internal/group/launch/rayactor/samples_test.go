package rayactor

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// TestSamples: Ray is given the values of the moment every few seconds, also after it has once
// refused them, and none when the launcher has stopped.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTrial(t, 1)
		var asked atomic.Int64
		x.FailNext("metrics", frame.Fault{Class: "RuntimeError", Message: "no exporter"})
		if _, err := x.start(t.Context(), func(o *Options) {
			o.Samples = func() []ray.Sample {
				return []ray.Sample{{Name: "eagleray_steps_total", Help: "Steps.",
					Labels: map[string]string{"engine": "0"}, Value: float64(asked.Add(1))}}
			}
		}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(showEvery)
			synctest.Wait()
			if s := x.Samples(); len(s) != 1 || s[0].Value != float64(asked.Load()) ||
				s[0].Labels["engine"] != "0" {
				t.Errorf("%+v after %d", s, asked.Load())
			}
		}
		x.end()
		if before := asked.Load(); before < 4 {
			t.Errorf("asked %d times", before)
		} else if time.Sleep(3 * showEvery); asked.Load() != before {
			t.Error("samples are asked for after the end")
		}
	})
}
