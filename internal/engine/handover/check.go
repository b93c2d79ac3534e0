package handover

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// TicketError says what is wrong with what a request says of KV blocks elsewhere.
type TicketError struct {
	// Field is within kv_transfer_params.
	Field, Reason string
}

func (e *TicketError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Reason) }

// Check refuses a request, the i-th of those submitted, that asks for what cannot be: to go on from
// a ticket, nil for none, or to hand its blocks over. Any goroutine may call it.
func (x *Exchange) Check(k *kvtransfer.Ticket, handOver bool, i int) error {
	switch {
	case k == nil && !handOver:
		return nil
	case x == nil:
		return &TicketError{"", "the server was started without --kv-transfer-config"}
	case handOver && !x.config.Produces():
		return &TicketError{"do_remote_decode", "the server is a kv_consumer"}
	case handOver && i > 0:
		return &TicketError{"do_remote_decode", "one sequence is handed over at a time"}
	case k == nil:
		return nil
	case !x.config.Consumes():
		return &TicketError{"do_remote_prefill", "the server is a kv_producer"}
	case k.Tokens < 1:
		return &TicketError{"remote_num_tokens", fmt.Sprintf("is %d, must be at least 1",
			k.Tokens)}
	case x.token != nil && !k.SealedBy(x.token):
		return &TicketError{"remote_seal", "it was not made by a server with this one's " +
			"--cluster-token-file"}
	case x.token == nil && !k.Address().Loopback():
		return &TicketError{"remote_host", "without --cluster-token-file blocks come from this " +
			"host only, by a loopback address"}
	}
	return nil
}
