package status

import (
	"fmt"
	"log/slog"
	"time"
)

// Paused says that new requests wait, in a mode of vLLM's: what becomes of those in flight.
type Paused struct{ Mode string }

// Log is at level info.
func (e Paused) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "generation is paused", []slog.Attr{slog.String("mode", e.Mode)}
}

// Resumed says that a pause is over.
type Resumed struct{}

// Log is at level info.
func (e Resumed) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "generation goes on", nil
}

// Slept says what of the ranks' memory is given back now: nothing once all are awake.
type Slept struct{ Weights, KVCache bool }

// Log is at level info.
func (e Slept) Log() (slog.Level, string, []slog.Attr) {
	message := "ranks sleep"
	if !e.Weights && !e.KVCache {
		message = "ranks are awake"
	}
	return slog.LevelInfo, message, []slog.Attr{slog.Bool("weights", e.Weights),
		slog.Bool("kv_cache", e.KVCache)}
}

// WeightsUpdated says that all ranks compute with new weights.
type WeightsUpdated struct {
	Version string
	Bytes   int64
	// Received is how long they took to come, Loaded and Swapped how long the ranks took after it.
	Received, Loaded, Swapped time.Duration
}

// Log is at level info.
func (e WeightsUpdated) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "weights were updated", []slog.Attr{
		slog.String("version", e.Version), slog.Int64("mb", e.Bytes>>20),
		slog.Int64("received_ms", e.Received.Milliseconds()),
		slog.Int64("loaded_ms", e.Loaded.Milliseconds()),
		slog.Int64("swapped_ms", e.Swapped.Milliseconds())}
}

// WeightsTrouble says that a part of an update of weights went wrong.
type WeightsTrouble struct {
	// What went wrong, as the log has it.
	What  string
	Cause error
}

// Log is at level warn.
func (e WeightsTrouble) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, e.What, []slog.Attr{slog.Any("cause", e.Cause)}
}

// Scaled says that there are more engines, or fewer.
type Scaled struct {
	From, Engines int
	Took          time.Duration
}

// Log is at level info.
func (e Scaled) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "scaled", []slog.Attr{slog.Int("from", e.From),
		slog.Int("engines", e.Engines), slog.Int64("ms", e.Took.Milliseconds())}
}

// LayoutChanged says that each engine divides the model among other ranks.
type LayoutChanged struct {
	Layout, Before string
	Took           time.Duration
}

// Log is at level info.
func (e LayoutChanged) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "changed the layout", []slog.Attr{
		slog.String("layout", e.Layout), slog.String("before", e.Before),
		slog.Int64("ms", e.Took.Milliseconds())}
}

// ExpertsMoved says that experts are on other ranks, so that these have more equal loads.
type ExpertsMoved struct {
	// Layers is how many layers' experts, Moves how many copies were moved; Before and After are
	// the means of the ranks' loads over the largest.
	Layers, Moves int
	Before, After float64
	Took          time.Duration
}

// Log is at level info.
func (e ExpertsMoved) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelInfo, "moved experts", []slog.Attr{slog.Int("layers", e.Layers),
		slog.Int("moves", e.Moves), slog.String("balancedness", fmt.Sprintf("%.2f", e.After)),
		slog.String("before", fmt.Sprintf("%.2f", e.Before)),
		slog.Int64("ms", e.Took.Milliseconds())}
}

// ExpertsStay says that experts were to be moved, and why they are where they were.
type ExpertsStay struct{ Cause error }

// Log is at level warn.
func (e ExpertsStay) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "experts are not moved", []slog.Attr{slog.Any("cause", e.Cause)}
}

// EngineTrouble says that one of several engines is not as it should be.
type EngineTrouble struct {
	// Engine is its number, What is wrong as the log has it.
	Engine int
	What   string
	Cause  error
}

// Log is at level error.
func (e EngineTrouble) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelError, e.What, []slog.Attr{slog.Int("engine", e.Engine),
		slog.Any("cause", e.Cause)}
}

// EnginesLeft says how many engines go on after one has failed for good.
type EnginesLeft struct{ Engines int }

// Log is at level warn.
func (e EnginesLeft) Log() (slog.Level, string, []slog.Attr) {
	return slog.LevelWarn, "the other engines go on", []slog.Attr{slog.Int("engines", e.Engines)}
}
