package rlhf

import (
	"context"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// between has the loop of an engine do something between two steps.
func between(ctx context.Context, e *engine.Engine, do func(*engine.Loop) error) error {
	return e.Between(ctx, engine.Task{Do: do})
}

// idle returns when an engine does what a pause or its end asks for: with no step in flight.
func idle(ctx context.Context, e *engine.Engine) error {
	return between(ctx, e, func(*engine.Loop) error { return nil })
}

func abortAll(ctx context.Context, e *engine.Engine) error {
	return between(ctx, e, func(l *engine.Loop) error {
		l.AbortAll()
		return nil
	})
}

// drain returns when no request is in flight but those that a pause holds.
func drain(ctx context.Context, e *engine.Engine) error {
	return e.Between(ctx, engine.Task{Drained: true, Do: func(*engine.Loop) error { return nil }})
}

// stage has the ranks of an engine load an update beside what they compute with.
func stage(ctx context.Context, e *engine.Engine, u *weights.Update, claimed func()) error {
	if e.Exchanges() {
		u.Digest() // here it holds up no step
	}
	return between(ctx, e, func(l *engine.Loop) error {
		return steer.Stage(l.Group(), u, claimed)
	})
}

// drop has the ranks of an engine forget an update that is not to be committed.
func drop(ctx context.Context, e *engine.Engine) error {
	return between(ctx, e, func(l *engine.Loop) error { return steer.Drop(l.Group()) })
}

// reserveSent has ranks of an engine find the memory for updates that they are sent.
func reserveSent(ctx context.Context, e *engine.Engine, room *weights.Room) error {
	return between(ctx, e, func(l *engine.Loop) error {
		return steer.ReserveSent(l.Group(), room)
	})
}
