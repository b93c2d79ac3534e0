package open

import (
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// Null describes ranks that answer every plan without a model, by which the cost of everything else
// is measured. The model's folder is used for its tokenizer, and for its limits but that of length.
type Null struct {
	// Text is what requests are answered with, a token each by turns; without a tokenizer it
	// is token 0.
	Text string
	// StepTime is how long a plan keeps the ranks busy.
	StepTime time.Duration
	// Elsewhere says that it is no core of this machine that is busy.
	Elsewhere bool
}

// init is what the ranks are told; nil for ranks that compute.
func (n *Null) init(info *Info) *queue.Null {
	if n == nil {
		return nil
	}
	q := &queue.Null{Tokens: []int32{0}, StepTime: n.StepTime, Elsewhere: n.Elsewhere}
	if info.Tokenizer != nil && n.Text != "" {
		q.Tokens = info.Tokenizer.Encode(n.Text, false)
	}
	return q
}
