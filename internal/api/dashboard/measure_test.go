package dashboard

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestMeasure: one measurement runs at a time, its failure is told, and it ends with its viewer and
// with the page.
func TestMeasure(t *testing.T) {
	began := make(chan context.Context, 1)
	goOn := make(chan error)
	p, err := New(Options{Measure: func(ctx context.Context, m Measurement, progress func(int)) (
		map[string]any, error) {
		began <- ctx
		progress(m.Prompts - 1)
		select {
		case err := <-goOn:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	// measure begins a measurement; the channel has its answer once it has ended.
	measure := func(ctx context.Context) chan string {
		ended := make(chan string, 1)
		go func() {
			rec := httptest.NewRecorder()
			r := httptest.NewRequest("POST", MeasurePath, nil).WithContext(ctx)
			if err := p.Measure(rec, r, Measurement{Prompts: 9}); err != nil {
				t.Error(err)
			}
			ended <- rec.Body.String()
		}()
		return ended
	}

	first := measure(t.Context())
	<-began
	rec := httptest.NewRecorder()
	r := httptest.NewRequest("POST", MeasurePath, nil)
	if err := p.Measure(rec, r, Measurement{Prompts: 1}); !errors.Is(err, ErrMeasuring) {
		t.Errorf("a second measurement: %v", err)
	}
	goOn <- errors.New("it broke")
	if got := <-first; !strings.Contains(got, `"total":9}`) ||
		!strings.HasSuffix(got, "event: error\ndata: {\"message\":\"it broke\"}\n\n") {
		t.Errorf("the events are %q", got)
	}

	leaving, leave := context.WithCancel(t.Context())
	second := measure(leaving)
	measured := <-began
	leave()
	<-second
	if measured.Err() == nil {
		t.Error("the measurement goes on without its viewer")
	}

	third := measure(t.Context())
	measured = <-began
	p.Close()
	<-third
	if measured.Err() == nil {
		t.Error("the measurement goes on without the page")
	}
}
