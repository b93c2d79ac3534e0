package main

import (
	"bytes"
	"log/slog"
	"os"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/ops/logging"
)

// serverLog is the log of a server, and where its other lines go: in JSON every line is a record,
// else those are for people.
type serverLog struct {
	*slog.Logger
	lines *logging.Writer
	json  bool
}

func newServerLog(format string) *serverLog {
	log, lines := logging.New(os.Stderr, format)
	return &serverLog{log, lines, format == "json"}
}

// end ends the log with what ended the server.
func (l *serverLog) end(err error) error {
	if err != nil && l.json {
		l.Error("ended", "error", err)
		err = &loggedError{err}
	}
	l.lines.Close(failureGrace)
	return err
}

// loggedError is an error that the log has told already.
type loggedError struct{ error }

func (e *loggedError) Unwrap() error { return e.error }

// ranks receives what ranks print.
func (l *serverLog) ranks() launch.Output {
	if !l.json {
		return launch.Print(l.lines)
	}
	return func(p launch.Line) {
		l.Warn("output", "rank", p.Rank, "node", p.Node, "pid", p.PID, "line", p.Text)
	}
}

// progress shows how a start goes on.
func (l *serverLog) progress() *progress {
	if l.json {
		return progressTo(records{l.Logger}, false)
	}
	return progressTo(l.lines, isTerminal(os.Stderr))
}

// records makes each line written a record.
type records struct{ log *slog.Logger }

func (r records) Write(line []byte) (int, error) {
	r.log.Info(string(bytes.TrimSpace(line)))
	return len(line), nil
}
