package ring

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"unsafe"
)

// This is a small explicit-state model checker: actors run programs of atomic steps on shared
// variables, and every interleaving is explored, also with the death of an actor between any two
// steps. It knows of futexes what the kernel promises: comparing a word and falling asleep is one
// step, waking all sleepers is one.

const (
	maxVars   = 32
	maxActors = 5
	maxLocals = 8
)

// Positions of an actor that has no more steps.
const (
	pcDone = 126
	pcDead = 127
)

// state is the whole state of the model. It has no padding: it is hashed as bytes.
type state struct {
	vars   [maxVars]int8
	pc     [maxActors]int8
	asleep [maxActors]int8 // on this event, plus 1
	locals [maxActors][maxLocals]int8
}

// step is one atomic action. It returns the label to go on at, "" for the next step. A local step
// neither reads nor writes what others may change: it commutes with all theirs, so it is explored
// together with the one before it.
type step struct {
	name  string
	local bool
	do    func(s *state) string
}

type actor struct {
	name   string
	steps  []step
	labels map[string]int
	// mortal actors may die between any two steps. enabled, if there, guards the first step.
	mortal  bool
	enabled func(s *state) bool
	// stuck reports whether an actor that is asleep should be awake.
	stuck func(s *state) bool
}

func (a *actor) label(name string) { a.labels[name] = len(a.steps) }

func (a *actor) step(name string, do func(s *state) string) {
	a.steps = append(a.steps, step{name: name, do: do})
}

func (a *actor) local(name string, do func(s *state) string) {
	a.steps = append(a.steps, step{name: name, local: true, do: do})
}

// load is a step that reads a variable that changes only if some actor of the model changes it.
func (a *actor) load(changes bool, name string, do func(s *state) string) {
	a.steps = append(a.steps, step{name: name, local: !changes, do: do})
}

type model struct {
	actors []*actor
	broken string // set by a step that finds a property violated
	// variables are those in use, by name.
	variables []string
	waits     map[int][][2]int // of an event: actors that wait, and their locals
}

func (m *model) variable(name string) int {
	m.variables = append(m.variables, name)
	return len(m.variables) - 1
}

// event declares the sleepers count of an event. Of its word only one thing counts, whether it
// still is as a waiter has observed it. So there is no variable for it: observing clears a mark of
// the waiter's own, and a bump sets all of them.
func (m *model) event(name string) int { return m.variable(name + " sleepers") }

func (m *model) actor(name string) (*actor, int) {
	a := &actor{name: name, labels: map[string]int{}}
	m.actors = append(m.actors, a)
	return a, len(m.actors) - 1
}

// fail reports a violated property.
func (m *model) fail(format string, args ...any) { m.broken = fmt.Sprintf(format, args...) }

// notify appends the steps of event.notify.
func (m *model) notify(a *actor, e int, name string) {
	skip := fmt.Sprintf("notified %s %d", name, len(a.steps))
	a.step("bump "+name, func(s *state) string {
		for _, w := range m.waits[e] {
			if s.locals[w[0]][w[1]] == stageAnnounced {
				s.locals[w[0]][w[1]+1] = 1
			}
		}
		return ""
	})
	a.step("look "+name, func(s *state) string {
		if s.vars[e] == 0 {
			return skip
		}
		return ""
	})
	a.step("wake "+name, func(s *state) string {
		for i := range s.asleep {
			if s.asleep[i] == int8(e)+1 {
				s.asleep[i] = 0
			}
		}
		return ""
	})
	a.label(skip)
}

// Stages of a waiter, as in waiter.
const (
	stageAwake = iota // or fresh: to spin is to check again
	stageAnnounced
)

// pause appends the steps of waiter.pause, which go back to the label again, and those of
// waiter.done at the label done, which go on behind. Two locals are used, from at on.
func (m *model) pause(a *actor, id, e int, name string, at int, again, done string) {
	stage, changed := at, at+1
	if m.waits == nil {
		m.waits = map[int][][2]int{}
	}
	m.waits[e] = append(m.waits[e], [2]int{id, at})
	forget := func(s *state) { s.locals[id][stage], s.locals[id][changed] = stageAwake, 0 }
	a.local("pause "+name, func(s *state) string {
		if s.locals[id][stage] == stageAnnounced {
			return "sleep " + name
		}
		return ""
	})
	a.step("announce "+name, func(s *state) string { s.vars[e]++; return "" })
	a.local("announced "+name, func(
		s *state) string {
		s.locals[id][stage] = stageAnnounced
		return ""
	})
	a.step("observe "+name, func(s *state) string { s.locals[id][changed] = 0; return "" })
	a.local("recheck "+name, func(s *state) string { return again })
	a.label("sleep " + name)
	a.local("observed "+name, func(s *state) string { return "" })
	a.step("sleep "+name, func(s *state) string {
		if s.locals[id][changed] == 0 {
			s.asleep[id] = int8(e) + 1
		}
		return ""
	})
	a.step("cancel "+name, func(s *state) string { s.vars[e]--; return "" })
	a.local("forget "+name, func(s *state) string { forget(s); return again })
	a.label(done)
	a.local("done "+name, func(s *state) string {
		if s.locals[id][stage] == stageAwake {
			return done + " already"
		}
		return ""
	})
	a.step("cancel "+name, func(s *state) string { s.vars[e]--; return "" })
	a.local("forget "+name, func(s *state) string { forget(s); return "" })
	a.label(done + " already")
}

// without makes all steps of an actor with a name do nothing, for a test of the checker. It reports
// whether there are any.
func (m *model) without(actor, name string) bool {
	found := false
	for _, a := range m.actors {
		for i := range a.steps {
			if a.name == actor && a.steps[i].name == name {
				a.steps[i].do = func(*state) string { return "" }
				found = true
			}
		}
	}
	return found
}

// swap exchanges two steps of an actor that do not branch, the first of each name.
func (m *model) swap(actor, one, other string) bool {
	for _, a := range m.actors {
		i := slices.IndexFunc(a.steps, func(s step) bool {
			return a.name == actor &&
				s.name == one
		})
		j := slices.IndexFunc(a.steps, func(s step) bool {
			return a.name == actor &&
				s.name == other
		})
		if i >= 0 && j >= 0 {
			a.steps[i], a.steps[j] = a.steps[j], a.steps[i]
			return true
		}
	}
	return false
}

type result struct {
	states, transitions, ends int
	violation                 string
	trace                     []string
}

// take makes an actor's next step and the local ones behind it.
func (m *model) take(a *actor, id int, s *state) {
	for {
		to := a.steps[s.pc[id]].do(s)
		switch s.pc[id]++; to {
		case "":
		case "end":
			s.pc[id] = pcDone
		default:
			at, ok := a.labels[to]
			if !ok {
				panic("no label " + to)
			}
			s.pc[id] = int8(at)
		}
		if int(s.pc[id]) == len(a.steps) {
			s.pc[id] = pcDone
		}
		if s.pc[id] == pcDone {
			s.locals[id] = [maxLocals]int8{}
			return
		}
		if s.asleep[id] != 0 || !a.steps[s.pc[id]].local {
			return
		}
	}
}

// maxStates is where check gives up.
const maxStates = 20_000_000

// check explores everything that can happen, until a property is violated. A state where nothing
// more can happen must be one in which every actor has ended, or sleeps and has nothing to wake up
// for.
func (m *model) check() result {
	if len(m.variables) > maxVars || len(m.actors) > maxActors {
		return result{violation: "model too large"}
	}
	e := exploration{model: m, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		seen: make([][2]uint64, 1<<16)}
	e.visit(&state{})
	return e.result
}

type exploration struct {
	*model
	result
	seeds [2]maphash.Seed
	// seen is a hash table of the states visited, each as 128 bits of hash.
	seen [][2]uint64
	path []move
	// copies has a state for each step of the path: none is allocated twice.
	copies []*state
}

type move struct{ actor, what string }

// add reports whether the state is new.
func (e *exploration) add(s *state) bool {
	b := unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
	key := [2]uint64{maphash.Bytes(e.seeds[0], b) | 1, maphash.Bytes(e.seeds[1], b)}
	if 2*e.states >= len(e.seen) {
		old := e.seen
		e.seen = make([][2]uint64, 4*len(old))
		for _, k := range old {
			if k[0] != 0 {
				e.insert(k)
			}
		}
	}
	return e.insert(key)
}

func (e *exploration) insert(key [2]uint64) bool {
	mask := uint64(len(e.seen) - 1)
	for i := key[1] & mask; ; i = (i + 1) & mask {
		switch e.seen[i] {
		case key:
			return false
		case [2]uint64{}:
			e.seen[i] = key
			return true
		}
	}
}

// violated records the first violation and how it came about.
func (e *exploration) violated(what string) bool {
	if e.violation == "" {
		e.violation = what
		for _, m := range e.path {
			e.trace = append(e.trace, m.actor+": "+m.what)
		}
	}
	return false
}

// visit explores on from a state, and returns false when a property is violated.
func (e *exploration) visit(s *state) bool {
	if e.broken != "" {
		return e.violated(e.broken)
	}
	if !e.add(s) {
		return true
	}
	if e.states++; e.states > maxStates {
		return e.violated(fmt.Sprintf("more than %d states", maxStates))
	}
	moved := false
	for i, a := range e.actors {
		pc := s.pc[i]
		if pc >= pcDone || pc == 0 && a.enabled != nil && !a.enabled(s) {
			continue
		}
		if a.mortal {
			next := e.copy(s)
			next.pc[i], next.asleep[i], next.locals[i] = pcDead, 0, [maxLocals]int8{}
			if !e.explore(next, move{a.name, "dies"}) {
				return false
			}
		}
		if s.asleep[i] != 0 {
			continue
		}
		moved = true
		next := e.copy(s)
		e.take(a, i, next)
		if !e.explore(next, move{a.name, a.steps[pc].name}) {
			return false
		}
	}
	if moved {
		return true
	}
	e.ends++
	for i, a := range e.actors {
		if s.asleep[i] != 0 && a.stuck(s) {
			return e.violated(a.name + " sleeps although there is something to do")
		}
	}
	return true
}

// copy copies a state for the next step of the path.
func (e *exploration) copy(s *state) *state {
	if len(e.copies) == len(e.path) {
		e.copies = append(e.copies, new(state))
	}
	next := e.copies[len(e.path)]
	*next = *s
	return next
}

func (e *exploration) explore(next *state, how move) bool {
	e.transitions++
	e.path = append(e.path, how)
	ok := e.visit(next)
	e.path = e.path[:len(e.path)-1]
	return ok
}

func (r result) String() string {
	if r.violation == "" {
		return fmt.Sprintf("%d states, %d transitions, %d ends", r.states, r.transitions, r.ends)
	}
	return fmt.Sprintf("%s after\n\t%s", r.violation, strings.Join(r.trace, "\n\t"))
}
