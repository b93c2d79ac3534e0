package kvtransfer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// Renounce tells the producer of a ticket that no engine will come for its blocks, or that they are
// not needed any more. An error that says that they are not held is no news to act on.
func Renounce(ctx context.Context, k *Ticket) error {
	config := handshake.ClientTLS(handshake.Endpoint{Fingerprint: k.Fingerprint})
	to := net.JoinHostPort(k.Host, strconv.Itoa(k.Port))
	c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", to)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	p := newPeer(ctx, c, nil)
	defer p.close()
	_, err = p.ask(&ask{Op: "done", Secret: k.Secret, Ranks: 1})
	return err
}
