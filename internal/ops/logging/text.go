package logging

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Text is a slog.Handler for people: the time of day, the level, the message, and what belongs to
// it, each in a column of its own.
type Text struct {
	mu    *sync.Mutex
	out   io.Writer
	least slog.Level
	// colours marks levels, and what belongs to a message, by escape sequences of terminals.
	colours bool
	// attrs are those of With, ready to print; group is the prefix of keys.
	attrs, group string
}

// NewText makes a handler for records of a level and above.
func NewText(out io.Writer, least slog.Level, colours bool) *Text {
	return &Text{mu: new(sync.Mutex), out: out, least: least, colours: colours}
}

// Enabled implements slog.Handler.
func (h *Text) Enabled(_ context.Context, l slog.Level) bool { return l >= h.least }

// messageWidth is the column in which what belongs to a message begins, unless that is longer.
const messageWidth = 20

// Escape sequences of terminals.
const (
	plain  = "\x1b[0m"
	faint  = "\x1b[2m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
)

// Handle implements slog.Handler.
func (h *Text) Handle(_ context.Context, r slog.Record) error {
	b := make([]byte, 0, 256)
	b = h.paint(b, faint, r.Time.Format(time.TimeOnly))
	b = append(b, ' ')
	level := r.Level.String()
	colour := ""
	switch {
	case r.Level >= slog.LevelError:
		colour = red
	case r.Level >= slog.LevelWarn:
		colour = yellow
	}
	b = h.paint(b, colour, level)
	b = append(b, strings.Repeat(" ", max(1, 6-len(level)))...)
	message := oneLine(r.Message)
	b = append(b, message...)
	attrs := []byte(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = appendAttr(attrs, h.group, a)
		return true
	})
	if len(attrs) > 0 {
		width := utf8.RuneCountInString(message)
		b = append(b, strings.Repeat(" ", max(1, messageWidth-width))...)
		b = h.paint(b, faint, string(attrs[1:]))
	}
	b = append(b, '\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.out.Write(b)
	return err
}

func (h *Text) paint(b []byte, colour, s string) []byte {
	if !h.colours || colour == "" {
		return append(b, s...)
	}
	return append(append(append(b, colour...), s...), plain...)
}

// WithAttrs implements slog.Handler.
func (h *Text) WithAttrs(attrs []slog.Attr) slog.Handler {
	x := *h
	for _, a := range attrs {
		x.attrs = string(appendAttr([]byte(x.attrs), h.group, a))
	}
	return &x
}

// WithGroup implements slog.Handler.
func (h *Text) WithGroup(name string) slog.Handler {
	x := *h
	if name != "" {
		x.group += name + "."
	}
	return &x
}

// appendAttr appends a space and key=value, quoted where it would not read as one word.
func appendAttr(b []byte, group string, a slog.Attr) []byte {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, inner := range v.Group() {
			b = appendAttr(b, group, inner)
		}
		return b
	}
	if a.Equal(slog.Attr{}) {
		return b
	}
	b = append(append(append(append(b, ' '), group...), a.Key...), '=')
	s := v.String()
	if s == "" || strings.ContainsAny(s, " =\"") || oneLine(s) != s {
		return strconv.AppendQuote(b, s)
	}
	return append(b, s...)
}

// oneLine is s without what would end the line, or change how a terminal shows it.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

func unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

var _ slog.Handler = (*Text)(nil)
