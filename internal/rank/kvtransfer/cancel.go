package kvtransfer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// Cancel tells the producer of a ticket to release its blocks: no engine will fetch them. The
// caller may ignore an error that says that the blocks are not held.
func Cancel(ctx context.Context, k *Ticket) error {
	config := handshake.ClientTLS(handshake.Endpoint{Fingerprint: k.Fingerprint})
	to := net.JoinHostPort(k.Host, strconv.Itoa(k.Port))
	c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", to)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	p := newPeer(ctx, c, nil)
	defer p.close()
	_, err = p.call(&request{Op: "done", Secret: k.Secret, Ranks: 1})
	return err
}
