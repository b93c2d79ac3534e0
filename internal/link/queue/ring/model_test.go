package ring

import (
	"fmt"
	"strings"
	"testing"
)

// The models below are driver.go, rank.go, writer.go and reader.go, step by step: one step for each
// load or store of a word that another actor writes or reads, and for each cell of the ring. A cell
// holds a record's number plus 1; a record is one cell or two, of which the second repeats the
// number; padCell fills what is left at the end.
const padCell = 100

// broadcastModel is one driver that sends and two ranks that receive.
type broadcastModel struct {
	cells int   // of the ring
	sizes []int // of the records, 1 or 2 cells
	// pieces makes ranks copy what they read and give it back only in parts of a whole ring or when
	// there is nothing more, as they do with records in pieces.
	pieces bool
	// What may happen, at any moment.
	mortalRank, liveDrop, driverClose, mortalDriver, rankClose bool
	// still makes rank 1 stop for ever, at any moment, without being dropped.
	still bool
}

func (c broadcastModel) build() *model {
	m := &model{}
	sent := m.variable("sent")
	head := [2]int{m.variable("head 0"), m.variable("head 1")}
	// the driver's
	dropped := [2]int{m.variable("dropped 0"), m.variable("dropped 1")}
	// the rank's copy
	droppedCopy := [2]int{m.variable("dropped copy 0"), m.variable("dropped copy 1")}
	left := [2]int{m.variable("left 0"), m.variable("left 1")}
	rankClosed := [2]int{m.variable("closed 0"), m.variable("closed 1")}
	closed, closedCopy := m.variable("closed"), m.variable("closed copy")
	data, space := m.event("data"), m.event("space")
	ring := len(m.variables)
	for i := range c.cells {
		m.variable(fmt.Sprint("cell ", i))
	}
	c.writer(m, sent, head, dropped, left, closed, data, space, ring)
	for r := range 2 {
		c.reader(m, r, sent, head[r], droppedCopy[r], left[r], rankClosed[r], closedCopy, data,
			space, ring)
	}
	set := func(a *actor, name string, v int) {
		a.step(name, func(s *state) string { s.vars[v] = 1; return "" })
	}
	driver, victim := 0, 2
	if c.mortalRank || c.liveDrop { // Driver.Drop of rank 1
		a, _ := m.actor("drop")
		set(a, "copy dropped", droppedCopy[1])
		set(a, "drop", dropped[1])
		m.notify(a, space, "space")
		m.notify(a, data, "data")
		if c.mortalRank {
			m.actors[victim].mortal = true
			a.enabled = func(s *state) bool { return s.pc[victim] == pcDead }
		}
	}
	if c.still {
		m.actors[victim].mortal = true
	}
	if c.driverClose { // Driver.Close
		a, _ := m.actor("close")
		set(a, "close", closed)
		set(a, "copy closed", closedCopy)
		m.notify(a, data, "data")
		m.notify(a, space, "space")
	}
	for r := range 2 { // Rank.Close
		if !c.mortalDriver && (!c.rankClose || r == 0) {
			continue
		}
		a, _ := m.actor(fmt.Sprint("close ", r))
		set(a, "close", rankClosed[r])
		set(a, "leave", left[r])
		m.notify(a, data, "data")
		m.notify(a, space, "space")
		if c.mortalDriver {
			m.actors[driver].mortal = true
			a.enabled = func(s *state) bool { return s.pc[driver] == pcDead }
		}
	}
	return m
}

// writer is Driver.Send, for all records.
func (c broadcastModel) writer(m *model, sent int, head, dropped, left [2]int, closed, data, space,
	ring int) {
	a, id := m.actor("driver")
	const next, tail, limit, lowest, waits = 0, 1, 2, 3, 4 // locals; waits takes two
	need := func(s *state) (pad, size int) {
		size = c.sizes[s.locals[id][next]]
		if rest := c.cells - int(s.locals[id][tail])%c.cells; rest < size {
			pad = rest
		}
		return pad, size
	}
	fits := func(s *state, limit int) bool {
		pad, size := need(s)
		return int(s.locals[id][tail])+pad+size <= limit
	}
	a.local("begin", func(s *state) string { s.locals[id][limit] = int8(c.cells); return "" })
	a.label("await")
	a.load(c.driverClose, "ended", func(s *state) string {
		if s.vars[closed] != 0 {
			return "gave up"
		}
		if fits(s, int(s.locals[id][limit])) {
			return "room"
		}
		s.locals[id][lowest] = s.locals[id][tail]
		return ""
	})
	for r := range 2 {
		behind := fmt.Sprint("behind ", r)
		a.load(r == 1 && (c.mortalRank || c.liveDrop), fmt.Sprint("dropped? ", r),
			func(s *state) string {
				if s.vars[dropped[r]] != 0 {
					return behind
				}
				return ""
			})
		a.load(c.mortalDriver || r == 1 && c.rankClose, fmt.Sprint("left? ", r),
			func(s *state) string {
				if s.vars[left[r]] != 0 {
					return behind
				}
				return ""
			})
		a.step(fmt.Sprint("head ", r), func(s *state) string {
			s.locals[id][lowest] = min(s.locals[id][lowest], s.vars[head[r]])
			return ""
		})
		a.label(behind)
	}
	a.local("free?", func(s *state) string {
		s.locals[id][limit] = s.locals[id][lowest] + int8(c.cells)
		s.locals[id][lowest] = 0
		if fits(s, int(s.locals[id][limit])) {
			return "room"
		}
		return ""
	})
	m.pause(a, id, space, "space", waits, "await", "room")
	// The tail is advanced first: a record's cells are those before it.
	cell := func(s *state, i int) *int8 {
		return &s.vars[ring+(int(s.locals[id][tail])-c.sizes[s.locals[id][next]]+i)%c.cells]
	}
	advance := func(s *state) { s.locals[id][tail] += int8(c.sizes[s.locals[id][next]]) }
	a.local("pad?", func(s *state) string {
		if pad, _ := need(s); pad == 0 {
			advance(s)
			return "unpadded"
		}
		return ""
	})
	a.step("pad", func(s *state) string {
		s.vars[ring+int(s.locals[id][tail])%c.cells] = padCell
		return ""
	})
	a.local("padded", func(s *state) string {
		pad, _ := need(s)
		s.locals[id][tail] += int8(pad)
		advance(s)
		return ""
	})
	a.label("unpadded")
	a.step("header", func(s *state) string {
		*cell(s, 0) = s.locals[id][next] + 1
		if c.sizes[s.locals[id][next]] == 1 {
			return "written"
		}
		return ""
	})
	a.step("payload", func(s *state) string { *cell(s, 1) = s.locals[id][next] + 1; return "" })
	a.label("written")
	a.step("publish", func(s *state) string { s.vars[sent] = s.locals[id][tail]; return "" })
	m.notify(a, data, "data")
	a.local("next", func(s *state) string {
		if s.locals[id][next]++; int(s.locals[id][next]) == len(c.sizes) {
			return "end"
		}
		return "await"
	})
	a.label("gave up")
	a.step("cancel", func(s *state) string {
		if s.locals[id][waits] == stageAnnounced {
			s.vars[space]--
		}
		return "end"
	})
	a.stuck = func(s *state) bool {
		lowest := int(s.locals[id][tail])
		for r := range 2 {
			if s.vars[dropped[r]] == 0 && s.vars[left[r]] == 0 && s.pc[1+r] != pcDead {
				lowest = min(lowest, int(s.vars[head[r]]))
			}
		}
		return s.vars[closed] != 0 || fits(s, lowest+c.cells)
	}
}

// reader is Rank.Recv and Release, until it is closed.
func (c broadcastModel) reader(m *model, r, sent, head, dropped, left, rankClosed, closed, data,
	space, ring int) {
	a, id := m.actor(fmt.Sprint("rank ", r))
	// Locals. at is reader.head, freed and seen as there; what holds what was found; waits takes
	// two.
	const at, freed, known, expected, what, sawClosed, waits = 0, 1, 2, 3, 4, 5, 6
	cell := func(s *state, i int) int8 { return s.vars[ring+(int(s.locals[id][at])+i)%c.cells] }
	// lives reports whether the records of the rank must not be overwritten.
	lives := func(s *state) bool {
		return s.vars[dropped] == 0 && s.vars[rankClosed] == 0 &&
			s.vars[left] == 0
	}
	release := func(then string) {
		a.step("free", func(s *state) string {
			s.locals[id][freed] = s.locals[id][at]
			s.vars[head] = s.locals[id][at]
			return ""
		})
		m.notify(a, space, "space")
		a.local("go on", func(*state) string { return then })
	}

	a.label("recv")
	a.load(c.driverClose, "closed?",
		func(s *state) string { s.locals[id][sawClosed] = s.vars[closed]; return "" })
	a.label("take")
	a.step("check", func(s *state) string {
		s.locals[id][what] = 0
		if s.locals[id][at] == s.locals[id][known] {
			if s.locals[id][known] = s.vars[sent]; s.locals[id][known] == s.locals[id][at] {
				return "nothing"
			}
		}
		return ""
	})
	a.step("header", func(s *state) string {
		n := cell(s, 0)
		if n == padCell {
			s.locals[id][at] += int8(c.cells - int(s.locals[id][at])%c.cells)
			return "take"
		}
		s.locals[id][what] = n
		if n < 1 || int(n) > len(c.sizes) { // a corrupt header, which the code notices, too
			s.locals[id][what] = padCell
			return "gone"
		}
		s.locals[id][at] += int8(c.sizes[n-1])
		if c.sizes[n-1] == 2 {
			return ""
		}
		return "gone"
	})
	a.step("payload", func(s *state) string {
		if n := s.locals[id][what]; cell(s, -1) != n {
			s.locals[id][what] = padCell
		}
		return ""
	})
	a.label("gone")
	a.load(c.mortalDriver || r == 1 && c.rankClose, "closed here?", func(s *state) string {
		if s.vars[rankClosed] != 0 {
			return "gave up"
		}
		return ""
	})
	a.load(r == 1 && (c.mortalRank || c.liveDrop), "dropped?", func(s *state) string {
		if s.vars[dropped] != 0 {
			return "gave up"
		}
		if s.locals[id][what] != 0 {
			return "found"
		}
		if s.locals[id][sawClosed] != 0 {
			return "gave up"
		}
		return ""
	})
	m.pause(a, id, data, "data", waits, "recv", "found")
	a.local("deliver", func(s *state) string {
		n := s.locals[id][what]
		s.locals[id][sawClosed] = 0
		if n == padCell {
			m.fail("rank %d got a torn record", r)
		} else if n != s.locals[id][expected]+1 {
			m.fail("rank %d got record %d, not %d", r, n-1, s.locals[id][expected])
		}
		s.locals[id][expected]++
		if c.pieces {
			s.locals[id][what] = 0
			if int(s.locals[id][at]-s.locals[id][freed]) < c.cells {
				return "recv"
			}
			return "release"
		}
		return ""
	})
	a.step("use", func(s *state) string { // the caller reads the view
		n := s.locals[id][what]
		if size := c.sizes[n-1]; lives(s) && (cell(s, -size) != n || cell(s, -1) != n) {
			m.fail("record %d was overwritten while rank %d read it", n-1, r)
		}
		s.locals[id][what] = 0
		return ""
	})
	a.label("release")
	release("recv")
	a.label("nothing")
	a.local("nothing", func(s *state) string {
		if s.locals[id][freed] != s.locals[id][at] {
			return "release first"
		}
		return ""
	})
	a.local("nothing to release", func(*state) string { return "gone" })
	a.label("release first")
	release("gone")
	a.label("gave up")
	a.step("cancel", func(s *state) string {
		if s.locals[id][waits] == stageAnnounced {
			s.vars[data]--
		}
		return "end"
	})
	a.stuck = func(s *state) bool {
		return s.vars[sent] != s.locals[id][at] || s.locals[id][freed] != s.locals[id][at] ||
			s.vars[closed] != 0 || !lives(s)
	}
}

// There is room for the longest record at any place: a ring has cells for it and one less to pad.
// Those with room for one record only are the hardest for wake-ups: no later record makes up for a
// lost one.
var broadcastModels = map[string]broadcastModel{
	"two ranks":                          {cells: 3, sizes: []int{1, 1, 2, 2}},
	"a ring of two cells":                {cells: 2, sizes: []int{1, 1, 1, 1}},
	"a ring of one cell":                 {cells: 1, sizes: []int{1, 1, 1, 1}},
	"pieces":                             {cells: 3, sizes: []int{1, 1, 1, 1, 1}, pieces: true},
	"pieces, large ones":                 {cells: 3, sizes: []int{2, 2, 2}, pieces: true},
	"a rank dies":                        {cells: 1, sizes: []int{1, 1, 1}, mortalRank: true},
	"a rank dies, records of two cells":  {cells: 3, sizes: []int{2, 2, 1}, mortalRank: true},
	"a living rank is dropped":           {cells: 3, sizes: []int{2, 2, 1}, liveDrop: true},
	"a living rank is dropped, one cell": {cells: 1, sizes: []int{1, 1, 1}, liveDrop: true},
	"the driver closes":                  {cells: 3, sizes: []int{2, 2, 1}, driverClose: true},
	"the driver dies, the ranks close":   {cells: 3, sizes: []int{2, 2}, mortalDriver: true},
	"a rank closes":                      {cells: 3, sizes: []int{2, 2, 1}, rankClose: true},
	"a rank closes, one cell":            {cells: 1, sizes: []int{1, 1, 1}, rankClose: true},
	"records of two cells":               {cells: 3, sizes: []int{2, 2}},
	"the driver closes, a rank is still": {cells: 1, sizes: []int{1, 1}, driverClose: true,
		still: true},
	"the driver closes, a rank has died": {cells: 1, sizes: []int{1, 1}, driverClose: true,
		mortalRank: true},
}

func TestModelBroadcast(t *testing.T) {
	for name, c := range broadcastModels {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && (c.driverClose && c.mortalRank ||
				len(c.sizes) > 2 && (c.driverClose || c.liveDrop || c.rankClose)) {
				t.Skip("a million states")
			}
			r := c.build().check()
			if r.violation != "" {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}

// TestModelNeedsEveryStep is a test of the checker: the protocol with any of these steps left out,
// or two exchanged, is wrong, and that is found.
func TestModelNeedsEveryStep(t *testing.T) {
	for _, c := range []struct {
		model, actor  string
		without, swap []string
		want          string
	}{
		{model: "two ranks", actor: "driver", without: []string{"bump data"}, want: "sleeps"},
		{model: "two ranks", actor: "driver", without: []string{"wake data"}, want: "sleeps"},
		{model: "a ring of one cell", actor: "driver", without: []string{"announce space",
			"cancel space"}, want: "sleeps"},
		{model: "two ranks", actor: "driver", without: []string{"recheck space"}, want: "sleeps"},
		{model: "a ring of one cell", actor: "driver", swap: []string{"observe space",
			"observed space"}, want: "sleeps"},
		{model: "two ranks", actor: "driver", swap: []string{"publish", "bump data"},
			want: "sleeps"},
		{model: "records of two cells", actor: "driver", swap: []string{"publish", "payload"},
			want: "got"},
		{model: "two ranks", actor: "driver", without: []string{"head 1"}, want: "rank 1 got"},
		{model: "two ranks", actor: "driver", without: []string{"pad"}, want: "got"},
		{model: "two ranks", actor: "rank 0", without: []string{"bump space"}, want: "sleeps"},
		{model: "two ranks", actor: "rank 0", without: []string{"wake space"}, want: "sleeps"},
		{model: "two ranks", actor: "rank 0", without: []string{"announce data", "cancel data"},
			want: "sleeps"},
		{model: "two ranks", actor: "rank 0", without: []string{"recheck data"}, want: "sleeps"},
		{model: "two ranks", actor: "rank 0", swap: []string{"observe data", "observed data"},
			want: "sleeps"},
		{model: "a ring of one cell", actor: "rank 0", swap: []string{"free", "bump space"},
			want: "sleeps"},
		{model: "two ranks", actor: "rank 0", swap: []string{"free", "use"}, want: "overwritten"},
		{model: "pieces, large ones", actor: "rank 0", without: []string{"nothing"},
			want: "sleeps"},
		{model: "a rank dies", actor: "drop", without: []string{"drop"}, want: "sleeps"},
		{model: "a rank dies", actor: "drop", without: []string{"bump space"}, want: "sleeps"},
		{model: "a rank dies", actor: "drop", without: []string{"wake space"}, want: "sleeps"},
		{model: "a living rank is dropped", actor: "drop", without: []string{"bump data"},
			want: "sleeps"},
		{model: "a living rank is dropped", actor: "drop", swap: []string{"copy dropped", "drop"},
			want: "rank 1"},
		{model: "the driver closes", actor: "close", without: []string{"bump data"},
			want: "sleeps"},
		{model: "the driver closes", actor: "close", without: []string{"wake data"},
			want: "sleeps"},
		{model: "the driver closes, a rank is still", actor: "close",
			without: []string{"wake space"}, want: "sleeps"},
		{model: "the driver dies, the ranks close", actor: "close 0",
			without: []string{"bump data"}, want: "sleeps"},
		{model: "a rank closes, one cell", actor: "close 1", without: []string{"bump space"},
			want: "sleeps"},
		{model: "a rank closes", actor: "close 1", swap: []string{"close", "leave"},
			want: "rank 1 got"},
	} {
		t.Run(strings.Join(append([]string{c.model, c.actor, c.want}, append(c.without,
			c.swap...)...), "/"), func(t *testing.T) {
			m := broadcastModels[c.model].build()
			for _, name := range c.without {
				if !m.without(c.actor, name) {
					t.Fatalf("no step %q", name)
				}
			}
			if c.swap != nil && !m.swap(c.actor, c.swap[0], c.swap[1]) {
				t.Fatalf("no steps %q", c.swap)
			}
			if r := m.check(); !strings.Contains(r.violation, c.want) {
				t.Errorf("found %q, want %q (%d states)", r.violation, c.want, r.states)
			}
		})
	}
}
