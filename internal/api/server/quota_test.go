package server

import "testing"

// TestQuotaIsGivenBack by each kind of request on its own.
func TestQuotaIsGivenBack(t *testing.T) {
	q := quota{limit: 1}
	for _, k := range []Kind{Answered, InBackground} {
		c := claim{"a", k}
		if bad := q.enter(c); bad != nil {
			t.Fatal(bad)
		}
		if bad := q.enter(c); bad == nil || bad.Status != 429 {
			t.Errorf("one more that %s: %v", k, bad)
		}
	}
	for _, k := range []Kind{Answered, InBackground} {
		q.leave(claim{"a", k})
	}
	if len(q.open) > 0 {
		t.Errorf("%v are open", q.open)
	}
}
