package handshake

import "fmt"

// Reason is why a worker was refused. It is an error, so that errors.Is(err, RankTaken) asks for
// one.
type Reason uint8

// The reasons for a refusal. They travel as numbers: do not reorder.
const (
	// Malformed is a frame that breaks the protocol, or bytes that are no frame at all.
	Malformed Reason = iota + 1
	// VersionMismatch is a peer that speaks another version.
	VersionMismatch
	// OtherInstance is a worker of another engine.
	OtherInstance
	// BadToken is a proof that does not match the token.
	BadToken
	// RankOutOfRange is a rank outside [0, world size).
	RankOutOfRange
	// RankTaken is a rank that another worker holds.
	RankTaken
	// BinaryMismatch is a worker whose executable differs from the driver's.
	BinaryMismatch
	// UnknownSession is a resumed session that the driver does not hold for that rank.
	UnknownSession
	// Timeout is a handshake that was not complete at its deadline.
	Timeout
	// Foreign is a unix socket whose peer runs under another user.
	Foreign
	// Crowded is a stranger dropped in favour of newer ones: see Options.MaxPending.
	Crowded
	// Insecure is a failed TLS handshake or a certificate that is not the pinned one.
	Insecure
	reasons
)

var reasonNames = [reasons]string{
	Malformed: "malformed frame", VersionMismatch: "version mismatch",
	OtherInstance: "other instance",
	BadToken:      "bad token", RankOutOfRange: "rank out of range", RankTaken: "rank taken",
	BinaryMismatch: "binary mismatch", UnknownSession: "unknown session", Timeout: "timeout",
	Foreign: "foreign user", Crowded: "too many pending handshakes",
	Insecure: "insecure connection",
}

func (r Reason) String() string {
	if r == 0 || r >= reasons {
		return fmt.Sprintf("reason %d", uint8(r))
	}
	return reasonNames[r]
}

// Error returns the reason's name.
func (r Reason) Error() string { return r.String() }

// Refused is the error of a handshake that failed for a known reason, on either side. It unwraps to
// its Reason.
type Refused struct {
	Reason Reason
	// Detail names the values that did not fit.
	Detail string
	// Final is set at a worker when the driver has proved itself while refusing: to try again is of
	// no use.
	Final bool
}

func (r *Refused) Error() string {
	if r.Detail == "" {
		return "handshake refused: " + r.Reason.String()
	}
	return "handshake refused: " + r.Reason.String() + ": " + r.Detail
}

// Unwrap returns the Reason.
func (r *Refused) Unwrap() error { return r.Reason }

func refuse(r Reason, format string, args ...any) *Refused {
	return &Refused{Reason: r, Detail: fmt.Sprintf(format, args...)}
}
