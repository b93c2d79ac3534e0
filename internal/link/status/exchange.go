package status

import (
	"log/slog"
	"time"
)

// KVExchangeOpened says that the ranks of a group exchange KV blocks with other engines.
type KVExchangeOpened struct {
	Role, EngineID string
	// Address is where the first rank listens.
	Address string
	Ranks   int
}

// Log is at level info.
func (e KVExchangeOpened) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "KV blocks are exchanged with other engines", []slog.Attr{
		slog.String("role", e.Role), slog.String("engine_id", e.EngineID),
		slog.String("address", e.Address), slog.Int("ranks", e.Ranks)}
}

// KVFetched is the end of a fetch of KV blocks from another engine.
type KVFetched struct {
	// Transfer names it, Blocks is how many blocks there were to come.
	Transfer string
	Blocks   int
	Began    time.Time
	Took     time.Duration
	// ByMemory and ByLink are the bytes that have come, through shared memory and over connections.
	ByMemory, ByLink int64
	// Err is why they have not come; nil when they have.
	Err error
}

// Log is at level warn for a fetch that failed, else at level debug.
func (e KVFetched) Log() (slog.Level, string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("transfer", e.Transfer), slog.Int("blocks", e.Blocks)}
	if e.Err != nil {
		return slog.LevelWarn, "KV blocks have not come: they are computed here",
			append(attrs, slog.Any("error", e.Err))
	}
	return slog.LevelDebug, "KV blocks have come", append(attrs,
		slog.Int64("began", e.Began.UnixMicro()), slog.Duration("took", e.Took),
		slog.Int64("by_memory", e.ByMemory), slog.Int64("by_link", e.ByLink))
}

// KVHandedOver is the end of a hand-out of KV blocks to another engine.
type KVHandedOver struct {
	// Transfer names it, Blocks is how many blocks were held for After.
	Transfer string
	Blocks   int
	After    time.Duration
	// Fetched says that the other engine has them; Err is why not.
	Fetched bool
	Err     error
}

// Log is at level warn for blocks that were not fetched, else at level debug.
func (e KVHandedOver) Log() (slog.Level, string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("transfer", e.Transfer), slog.Int("blocks", e.Blocks),
		slog.Duration("after", e.After)}
	if !e.Fetched {
		return slog.LevelWarn, "KV blocks were not fetched: they are given up",
			append(attrs, slog.Any("error", e.Err))
	}
	return slog.LevelDebug, "KV blocks were fetched", attrs
}

// GrammarCompiled says that a request's constraint can be enforced, or not: Cached, when that was
// known already, or after it was compiled for Took.
type GrammarCompiled struct {
	Cached bool
	Took   time.Duration
}

// Log is at level debug: it happens with every request that has a constraint.
func (e GrammarCompiled) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "constraint compiled", []slog.Attr{slog.Bool("cached", e.Cached),
		slog.Duration("took", e.Took)}
}

// Guess is a step of a request: how many drafts it verified, and how many tokens it made, of which
// all but the last were drafts.
type Guess struct{ Drafts, Tokens uint8 }

// Speculated says what was guessed of a request that has ended with so many tokens: the steps from
// the first guess on, as many as are kept.
type Speculated struct {
	Steps  []Guess
	Tokens int
}

// Log is at level debug: it happens with every request that drafts are made for.
func (e Speculated) Log() (slog.Level, string, []slog.Attr) {
	drafts, right := 0, 0
	for _, g := range e.Steps {
		drafts += int(g.Drafts)
		right += min(int(g.Drafts), max(0, int(g.Tokens)-1))
	}
	return slog.LevelDebug, "tokens guessed", []slog.Attr{slog.Int("tokens", e.Tokens),
		slog.Int("steps", len(e.Steps)), slog.Int("drafts", drafts), slog.Int("right", right)}
}

// Frequent says that an event happens with every request of its kind: metrics count it, and a list
// of what has happened does without.
func Frequent(e Event) bool {
	switch e := e.(type) {
	case KVFetched:
		return e.Err == nil
	case KVHandedOver:
		return e.Fetched
	case OffloadLoaded:
		return e.Err == nil
	case OffloadStored:
		return true
	case GrammarCompiled, Speculated:
		return true
	}
	return false
}
