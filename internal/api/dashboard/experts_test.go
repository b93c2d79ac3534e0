package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
)

// TestExpertsFeed lets a viewer see the load of experts when it changes, while ranks that are in a
// long step keep the question waiting, and not the samples.
func TestExpertsFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		e := &fakeEngine{began: began, load: func(ctx context.Context) ([]engine.ExpertLoad,
			error) {
			switch at := time.Since(began); {
			case at < 2*time.Second:
				rows := []int64{30, 10, 0, 0}
				return []engine.ExpertLoad{{Layer: 3, Rows: rows, Recent: rows}}, nil
			case at < 4*time.Second: // computed for two seconds
				select {
				case <-time.After(2 * time.Second):
				case <-ctx.Done():
				}
				return nil, errors.New("being replaced")
			case at < 6*time.Second:
				return []engine.ExpertLoad{{Layer: 3, Rows: []int64{130, 10, 0, 0},
					Recent: []int64{100, 0, 0, 0}}}, nil
			}
			<-ctx.Done() // a rank that does not come back
			return nil, ctx.Err()
		}}
		p := newPage(t, e, nil)
		defer p.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		s := &sink{header: http.Header{}}
		if err := p.Feed(s, httptest.NewRequestWithContext(ctx, "GET", LivePath, nil)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 8*time.Second {
			t.Errorf("the feed ended after %v", took)
		}
		var got [][]Experts
		samples := 0
		for event := range strings.SplitSeq(s.text.String(), "\n\n") {
			data, experts := strings.CutPrefix(event, "event: experts\ndata: ")
			if experts {
				got = append(got, nil)
				if err := json.Unmarshal([]byte(data), &got[len(got)-1]); err != nil {
					t.Fatal(err)
				}
			} else if strings.HasPrefix(event, "event: sample") {
				samples++
			}
		}
		want := [][]Experts{{{Layer: 3, Balancedness: 1. / 3, Hottest: 0, Share: 0.75,
			Heat: []byte{255, 85, 0, 0}}}, {{Layer: 3, Balancedness: 0.25, Hottest: 0, Share: 1,
			Heat: []byte{255, 0, 0, 0}}}}
		if !slices.EqualFunc(got, want, func(a, b []Experts) bool {
			return reflect.DeepEqual(a, b)
		}) {
			t.Errorf("experts %+v, not %+v", got, want)
		}
		if samples < 31 {
			t.Errorf("%d samples in 8 s", samples)
		}
	})
}
