package status

import "log/slog"

// OfEngine is an event of one of several engines behind one server. A listener that looks for
// single kinds of events takes it apart with Source.
type OfEngine struct {
	// Engine is the number of the engine, from 0.
	Engine int
	Event
}

// Log is that of the event, with the engine's number.
func (e OfEngine) Log() (slog.Level, string, []slog.Attr) {
	level, message, attrs := e.Event.Log()
	return level, message, append([]slog.Attr{slog.Int("engine", e.Engine)}, attrs...)
}

// Source is an event without its engine, and the number of the engine: 0 when there is one.
func Source(e Event) (event Event, engine int) {
	if of, ok := e.(OfEngine); ok {
		return of.Event, of.Engine
	}
	return e, 0
}

// Like is an event of the engine that another one is of.
func Like(other, event Event) Event {
	if of, ok := other.(OfEngine); ok {
		return OfEngine{of.Engine, event}
	}
	return event
}

// FromEngine notifies the listener of events as those of one of several engines.
func (l Listener) FromEngine(engine int) Listener {
	return func(e Event) { l.Emit(OfEngine{engine, e}) }
}
