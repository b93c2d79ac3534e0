package chaos

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// oracle asks the health route and a request for one token together, at random moments.
//
// The route may be wrong for window. Beyond that, 200 is wrong when the token does not come and no
// rank moves, and so is 503 after it has come: both are looked at again after the window, because
// either may have changed in between. A token that is late while ranks move is that of a busy
// machine.
type oracle struct {
	s   *server
	l   *load
	rng *rand.Rand
	h   Health
	// rest is held while it asks, and to have it not ask.
	rest sync.Mutex
}

const (
	window = 100 * time.Millisecond
	// due is when a token that a healthy server owes must be there: a stalled rank is known by
	// then.
	due = 2*stall + window
	// busy is how late a token may be although ranks move.
	busy = 20 * time.Second
)

func (o *oracle) run(ctx context.Context) {
	for {
		select {
		case <-time.After(time.Duration(o.rng.Int64N(int64(150 * time.Millisecond)))):
		case <-ctx.Done():
			return
		}
		o.ask()
	}
}

func (o *oracle) ask() {
	o.rest.Lock()
	defer o.rest.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	token := make(chan error, 1)
	go func() { token <- o.token(ctx) }()
	before, _ := o.s.get(ctx, "/health")
	o.looked(before)
	select {
	case err := <-token:
		switch {
		case err != nil && before == http.StatusOK:
			o.disagree("health 200, and a token fails: %v", err)
		case err == nil && before != http.StatusOK:
			time.Sleep(window)
			if after, _ := o.s.get(ctx, "/health"); after != http.StatusOK {
				// A new fault may have come: only another token tells.
				if quick := o.within(ctx, window); quick {
					if again, _ := o.s.get(ctx, "/health"); again != http.StatusOK {
						o.disagree("health %d for %v although tokens come", again, window)
					}
				}
			}
		}
		return
	case <-time.After(due):
	}
	// The token is late: the route must say why, now or within the window, unless a rank moves.
	for started := time.Now(); ; {
		now, _ := o.s.get(ctx, "/health")
		still := o.still(ctx)
		select {
		case <-token:
			return
		case <-time.After(window):
		}
		late := time.Since(started)
		if again, _ := o.s.get(ctx, "/health"); now != http.StatusOK || again != http.StatusOK {
			break
		}
		if still > due || late > busy {
			o.disagree("health 200 although a token has not come for %v, and no rank has moved "+
				"for %v", due+late, still)
			break
		}
	}
	<-token
}

// still is for how long no rank has moved, 0 where that is not known.
func (o *oracle) still(ctx context.Context) time.Duration {
	ranks, err := o.s.listed(ctx)
	if err != nil || len(ranks) == 0 {
		return 0
	}
	least := slices.MinFunc(ranks, func(a, b rank) int { return cmp.Compare(a.Still, b.Still) })
	return time.Duration(least.Still * float64(time.Second))
}

// looked counts an answer of the health route. rest is held.
func (o *oracle) looked(status int) {
	o.h.Asked++
	if status != http.StatusOK {
		o.h.Unhealthy++
	}
}

// disagree counts a lie of the health route. rest is held.
func (o *oracle) disagree(format string, args ...any) {
	o.h.Disagreed++
	if len(o.h.Disagreement) < 20 {
		o.h.Disagreement = append(o.h.Disagreement, fmt.Sprintf(format, args...)+", "+o.l.when())
	}
}

// within asks for a token that must come in time.
func (o *oracle) within(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return o.token(ctx) == nil
}

func (o *oracle) token(ctx context.Context) error {
	resp, err := o.s.post(ctx, o.s.now(), map[string]any{"prompt": []int{5}, "max_tokens": 1,
		"temperature": 0})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
