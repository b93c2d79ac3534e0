package status

import (
	"log/slog"
	"time"
)

// OffloadOpened says that ranks store KV blocks in files, or why not.
type OffloadOpened struct {
	Dir string
	// Bytes is what the files may have, Room what the file system leaves for them.
	Bytes, Room int64
	Err         error
}

// Log is at level warn where blocks are not stored, or fewer than was asked for.
func (e OffloadOpened) Log() (slog.Level, string, []slog.Attr) {
	attrs := []slog.Attr{slog.String("folder", e.Dir), slog.Int64("mb", e.Bytes>>20)}
	switch {
	case e.Err != nil:
		return slog.LevelWarn, "KV blocks are not stored in files", append(attrs,
			slog.Any("error", e.Err))
	case e.Room < e.Bytes:
		return slog.LevelWarn, "KV blocks are stored in files; the file system has less room " +
			"than --kv-offloading-size", append(attrs, slog.Int64("room_mb", e.Room>>20))
	}
	return slog.LevelInfo, "KV blocks are stored in files", attrs
}

// OffloadFailed says that KV blocks were not stored, and that none are for a while.
type OffloadFailed struct {
	Err  error
	Rest time.Duration
}

// Log is at level warn.
func (e OffloadFailed) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "KV blocks were not stored in files; requests go on without",
		[]slog.Attr{slog.Duration("again_after", e.Rest), slog.Any("error", e.Err)}
}

// OffloadLoaded is the end of a load of KV blocks from files.
type OffloadLoaded struct {
	// Blocks is how many have come Of those that there were to come, Bytes what all ranks have
	// read.
	Blocks, Of int
	Bytes      int64
	Took       time.Duration
	// Err is what is wrong with a file, such as damage; nil also where some have none.
	Err error
}

// Log is at level warn for files that are not as they were written, else at level debug.
func (e OffloadLoaded) Log() (slog.Level, string, []slog.Attr) {
	attrs := []slog.Attr{slog.Int("blocks", e.Blocks), slog.Int("of", e.Of),
		slog.Int64("bytes", e.Bytes), slog.Duration("took", e.Took)}
	if e.Err != nil {
		return slog.LevelWarn, "a file of KV blocks is not used: they are computed",
			append(attrs, slog.Any("error", e.Err))
	}
	return slog.LevelDebug, "KV blocks were loaded from files", attrs
}

// OffloadStored is the end of a store of KV blocks in files.
type OffloadStored struct {
	// Blocks is how many are there now, Bytes what all ranks have written.
	Blocks int
	Bytes  int64
	Took   time.Duration
	// Err is why others are not.
	Err error
}

// Log is at level debug: what fails is an OffloadFailed, too.
func (e OffloadStored) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelDebug, "KV blocks were stored in files", []slog.Attr{
		slog.Int("blocks", e.Blocks), slog.Int64("bytes", e.Bytes), slog.Duration("took", e.Took)}
}
