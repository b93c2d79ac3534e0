// Package logging makes the program's log: in one of several formats, and never in the way of the
// work that it tells of.
package logging

import (
	"log/slog"
	"os"

	"golang.org/x/term"
)

// Formats are the names of the formats. "auto" is text on a terminal and logfmt elsewhere.
var Formats = []string{"auto", "text", "logfmt", "json"}

// New makes a log of one of Formats on out. The logger writes through the Writer, which must be
// closed at the end of the program.
func New(out *os.File, format string) (*slog.Logger, *Writer) {
	terminal := term.IsTerminal(int(out.Fd()))
	w := NewWriter(out)
	var h slog.Handler
	switch {
	case format == "json":
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: inSeconds})
	case format == "text" || terminal && format != "logfmt":
		h = NewText(w, slog.LevelInfo, terminal && Colours())
	default:
		h = slog.NewTextHandler(w, nil)
	}
	log := slog.New(h)
	w.lost = func(lines int) {
		log.Warn("log lines were dropped: they were not read in time", "lines", lines)
	}
	return log, w
}

// inSeconds has JSON say times in seconds, with the unit in the key.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
}

// Colours tells whether a terminal may be given colours: https://no-color.org asks for none, and
// some terminals have none.
func Colours() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }
