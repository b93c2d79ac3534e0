package status

import "fmt"

// Exchange is what the ranks of a group give each other, at one point of a layer or between two.
type Exchange uint8

// The exchanges. Dispatch and Combine are those of expert parallelism: rows on their way to the
// ranks that have their experts, and sums on their way back.
const (
	NoExchange Exchange = iota
	Start
	Sum
	Keys
	Dispatch
	Combine
	Rows
	Logits
	Hidden
	Tokens
	exchanges
)

var exchangeNames = [exchanges]string{"no exchange", "start of the step", "sum",
	"keys and values", "dispatch to experts", "combine from experts", "rows to sample from",
	"logits", "hidden states", "sampled tokens"}

func (e Exchange) String() string {
	if e >= exchanges {
		return fmt.Sprintf("exchange %d", uint8(e))
	}
	return exchangeNames[e]
}

// Within is where in a step a rank is, as the Detail of Forward and of Collective.
type Within struct {
	// Layer is the model's layer, of 65,536 at most.
	Layer int
	// Done is in how many exchanges of the layer the rank has taken part.
	Done uint8
	// Awaits is the exchange that the rank waits in, NoExchange for none or for one that is not
	// known.
	Awaits Exchange
}

// Detail encodes w.
func (w Within) Detail() uint32 {
	return uint32(uint16(w.Layer)) | uint32(w.Done)<<16 | uint32(w.Awaits)<<24
}

// Within decodes the Detail of a rank that is within a layer.
func (s Snapshot) Within() Within {
	return Within{Layer: int(uint16(s.Detail)), Done: uint8(s.Detail >> 16),
		Awaits: Exchange(s.Detail >> 24)}
}

func (w Within) String() string {
	if w.Awaits == NoExchange {
		return fmt.Sprintf("layer %d", w.Layer)
	}
	return fmt.Sprintf("layer %d, %v", w.Layer, w.Awaits)
}

// At publishes where in a step the rank is: in Collective if it waits for others, else in Forward.
func (r *Rank) At(w Within) {
	phase := Forward
	if w.Awaits != NoExchange {
		phase = Collective
	}
	r.Set(phase, w.Detail())
}
