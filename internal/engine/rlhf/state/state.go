// Package state is what a server with --enable-rlhf may be asked for next: whether it generates,
// whether it sleeps, and how far an update of its weights has come. It is a pure state machine: it
// knows no clock, no goroutine and no I/O.
package state

import (
	"fmt"
	"slices"
	"strings"
)

// Mode is what becomes of the requests in flight when generation is paused.
type Mode string

// The modes of a pause, as vLLM has them. New requests wait in all of them.
const (
	// Abort ends the requests in flight, with what they have.
	Abort Mode = "abort"
	// Wait lets them finish.
	Wait Mode = "wait"
	// Keep freezes them: they go on after the pause.
	Keep Mode = "keep"
)

// Modes lists them.
func Modes() []Mode { return []Mode{Abort, Wait, Keep} }

// The parts of a server that sleep and wake up, by their tags.
const (
	Weights = "weights"
	KVCache = "kv_cache"
)

// Tags lists them.
func Tags() []string { return []string{Weights, KVCache} }

// update is how far an update of the weights has come.
type update string

const (
	closed  update = "no weight transfer engine"
	ready   update = "no update is under way"
	started update = "an update is under way, without weights so far"
	filling update = "an update is under way"
)

// Machine is the state of one server. The zero Machine is that of one that has just been started. A
// method that returns an error leaves it as it was.
type Machine struct {
	paused Mode
	// resting says that the pause is that of a sleep, and ends with it.
	resting bool
	// level is that of the sleep, asleep the parts that have not woken up.
	level  int
	asleep []string
	update update
	// last is what became of the update before, "" where there was none.
	last string
}

// WrongOrder is the error of what cannot be done now.
type WrongOrder struct {
	// Asked is what was asked for, State why it cannot be done, Next what can.
	Asked, State, Next string
}

// Error says all three.
func (e *WrongOrder) Error() string {
	return fmt.Sprintf("%s: %s; %s", e.Asked, e.State, e.Next)
}

func wrong(asked, state, next string) error { return &WrongOrder{asked, state, next} }

// String is the state in one line.
func (m *Machine) String() string {
	var parts []string
	switch {
	case m.paused != "":
		parts = append(parts, "paused ("+string(m.paused)+")")
	default:
		parts = append(parts, "running")
	}
	if len(m.asleep) > 0 {
		parts = append(parts, fmt.Sprintf("asleep at level %d (%s)", m.level,
			strings.Join(m.asleep, ", ")))
	}
	return strings.Join(append(parts, string(m.phase())), "; ")
}

// phase is update, whose zero value stands for closed.
func (m *Machine) phase() update {
	if m.update == "" {
		return closed
	}
	return m.update
}

// over is that there is no update, and why no more.
func (m *Machine) over() string {
	if m.last == "" {
		return string(m.phase())
	}
	return string(m.phase()) + ", the last one " + m.last
}

// Paused says whether generation is paused.
func (m *Machine) Paused() bool { return m.paused != "" }

// Frozen says whether no request goes on, those in flight neither.
func (m *Machine) Frozen() bool { return m.paused == Keep || m.Sleeping() }

// Asleep says whether the part of a tag sleeps.
func (m *Machine) Asleep(tag string) bool { return slices.Contains(m.asleep, tag) }

// Sleeping says whether a part sleeps.
func (m *Machine) Sleeping() bool { return len(m.asleep) > 0 }

// Updating says whether an update was started and not finished.
func (m *Machine) Updating() bool { return m.update == started || m.update == filling }

// Pause pauses generation. Another pause may only be sharper: what was let finish or kept is ended.
func (m *Machine) Pause(mode Mode) error {
	if m.Sleeping() {
		return wrong("pause", "the server sleeps", "it is paused until it wakes up")
	}
	m.paused = mode
	return nil
}

// Resume goes on with generation. Where nothing is paused it does nothing.
func (m *Machine) Resume() error {
	if m.Sleeping() {
		return wrong("resume", "the server sleeps", "wake it up first")
	}
	m.paused, m.resting = "", false
	return nil
}

// Sleep pauses generation and lets parts sleep: at level 1 the KV cache, at level 2 the weights
// too. Level 0 only pauses. A deeper sleep may follow another one.
func (m *Machine) Sleep(level int, mode Mode) error {
	if m.Updating() {
		return wrong("sleep", string(m.update), "finish it first")
	}
	if m.Sleeping() && level < m.level {
		return wrong(fmt.Sprintf("sleep at level %d", level),
			fmt.Sprintf("the server sleeps at level %d", m.level), "wake it up first")
	}
	if m.paused == "" {
		m.paused, m.resting = mode, true
	}
	m.level = level
	m.asleep = nil // a copy of the Machine has the one from before
	if level >= 2 {
		m.asleep = append(m.asleep, Weights)
	}
	if level >= 1 {
		m.asleep = append(m.asleep, KVCache)
	}
	return nil
}

// Wake wakes parts up, all if there are no tags. With the last part a pause that came with the
// sleep ends, which it reports.
func (m *Machine) Wake(tags []string) (resumed bool, err error) {
	for _, t := range tags {
		if !slices.Contains(Tags(), t) {
			return false, fmt.Errorf("tag %q is none of %s", t, strings.Join(Tags(), ", "))
		}
	}
	m.asleep = slices.DeleteFunc(slices.Clone(m.asleep), func(t string) bool {
		return len(tags) == 0 || slices.Contains(tags, t)
	})
	if m.Sleeping() {
		m.level = 1
		if slices.Contains(m.asleep, Weights) {
			m.level = 2
		}
		return false, nil
	}
	m.level = 0
	if !m.resting {
		return false, nil
	}
	m.paused, m.resting = "", false
	return true, nil
}

// Init opens the weight transfer engine. One that is open is opened anew: an update under way is
// given up.
func (m *Machine) Init() error {
	if m.Updating() {
		m.last = "was given up by init_weight_transfer_engine"
	}
	m.update = ready
	return nil
}

// Start begins an update.
func (m *Machine) Start() error {
	switch {
	case m.Updating():
		return wrong("start_weight_update", string(m.update),
			"finish it, or give it up by init_weight_transfer_engine")
	case m.phase() == closed:
		return wrong("start_weight_update", string(closed),
			"call init_weight_transfer_engine first")
	case slices.Contains(m.asleep, Weights):
		return wrong("start_weight_update", "the weights sleep", "wake them up first")
	}
	m.update = started
	return nil
}

// Update takes weights into an update.
func (m *Machine) Update() error {
	if !m.Updating() {
		return wrong("update_weights", m.over(), "call start_weight_update first")
	}
	m.update = filling
	return nil
}

// Finish ends an update whose weights are complete.
func (m *Machine) Finish() error {
	switch {
	case m.update == started:
		return wrong("finish_weight_update", string(started), "call update_weights first")
	case !m.Updating():
		return wrong("finish_weight_update", m.over(), "call start_weight_update first")
	}
	m.update, m.last = ready, "was finished"
	return nil
}

// Fail ends an update, if there is one, that has failed by a cause: the weights are those from
// before it.
func (m *Machine) Fail(cause error) {
	if m.Updating() {
		m.update, m.last = ready, fmt.Sprintf("failed (%v)", cause)
	}
}
