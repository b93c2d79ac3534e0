package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
)

// TestDebugExperts asks for the load of two engines' experts, of a model without any, and of ranks
// that do not answer.
func TestDebugExperts(t *testing.T) {
	var failure error
	s := newServer(t, func(o *Options) {
		o.Experts = func(context.Context) ([][]engine.ExpertLoad, error) {
			return [][]engine.ExpertLoad{{{Layer: 3, Rows: []int64{70, 10},
				Recent: []int64{30, 10}}}, nil}, failure
		}
	})
	want := `{"engines":[{"engine":0,"layers":[{"layer":3,"balancedness":0.6666666666666666,` +
		`"hottest_expert":0,"hottest_share":0.75,"tokens":[70,10],"recent_tokens":[30,10]}]},` +
		`{"engine":1,"layers":[]}]}`
	rec := s.do("GET", "/debug/experts", "")
	if rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != want {
		t.Errorf("%d: %s, not %s", rec.Code, rec.Body, want)
	}
	failure = fmt.Errorf("engine 1: %w", engine.ErrNoExpertLoad)
	if rec := s.do("GET", "/debug/experts", ""); rec.Code != 404 ||
		!strings.Contains(rec.Body.String(), "no mixture of experts") {
		t.Errorf("%d: %s", rec.Code, rec.Body)
	}
	failure = errors.New("rank 3 is gone")
	if rec := s.do("GET", "/debug/experts", ""); rec.Code != 500 {
		t.Errorf("%d: %s", rec.Code, rec.Body)
	}
}
