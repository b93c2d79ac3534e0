package dashboard

import (
	"context"
	"errors"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
)

// Experts is the load of the experts of a layer in the last minutes.
type Experts struct {
	Layer        int     `json:"layer"`
	Balancedness float64 `json:"balancedness"`
	// Hottest is the expert with the largest share.
	Hottest int     `json:"hottest"`
	Share   float64 `json:"share"`
	// Heat is the tokens of each expert, 255 being those of the hottest; it travels in base64.
	Heat []byte `json:"heat"`
}

// askEvery is the time between two questions for the load of experts.
const askEvery = time.Second

// askExperts asks for the load of experts until the context ends, and sends what is new, if the
// model has any.
func (p *Page) askExperts(ctx context.Context, to chan<- []Experts) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for sent := int64(0); ; {
		loads, err := p.opt.Engine.ExpertLoad(ctx)
		if errors.Is(err, engine.ErrNoExpertLoad) {
			return
		}
		// Without new tokens, or without an answer, what is shown stays.
		if list, sum := heats(loads); err == nil && sum != sent {
			sent = sum
			select {
			case to <- list:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// heats describes loads. sum is all of their tokens.
func heats(loads []engine.ExpertLoad) (list []Experts, sum int64) {
	list = make([]Experts, len(loads))
	for i := range loads {
		l := &loads[i]
		hottest, share := l.Hottest()
		list[i] = Experts{Layer: l.Layer, Balancedness: l.Balancedness(), Hottest: hottest,
			Share: share, Heat: make([]byte, len(l.Recent))}
		for e, n := range l.Recent {
			list[i].Heat[e] = byte(255 * n / max(1, l.Recent[hottest]))
		}
		for _, n := range l.Rows {
			sum += n
		}
	}
	return list, sum
}
