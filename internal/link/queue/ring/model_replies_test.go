package ring

import (
	"fmt"
	"strings"
	"testing"
)

// repliesModel is two ranks that send, each in its own ring, and a driver that receives from both
// with one wait.
type repliesModel struct {
	cells   int // of a ring; every record is one
	records int // of a rank
	// leave makes the ranks close when they have sent everything; then the driver must come to an
	// end, too.
	leave bool
	// What may happen, at any moment.
	mortalRank, driverClose bool
}

func (c repliesModel) build() *model {
	m := &model{}
	sent := [2]int{m.variable("sent 0"), m.variable("sent 1")}
	taken := [2]int{m.variable("taken 0"), m.variable("taken 1")}
	left := [2]int{m.variable("left 0"), m.variable("left 1")}
	dropped := m.variable("dropped 1")
	closed, tellClosed := m.variable("closed"), m.variable("told closed")
	replies := m.event("replies")
	space := [2]int{m.event("space 0"), m.event("space 1")}
	rings := [2]int{}
	for r := range 2 {
		rings[r] = len(m.variables)
		for i := range c.cells {
			m.variable(fmt.Sprintf("cell %d of %d", i, r))
		}
	}
	c.driver(m, sent, taken, left, dropped, closed, replies, space, rings)
	for r := range 2 {
		c.rank(m, r, sent[r], taken[r], left[r], tellClosed, replies, space[r], rings[r])
	}
	if c.mortalRank { // Driver.Drop of rank 1
		a, _ := m.actor("drop")
		a.step("drop", func(s *state) string { s.vars[dropped] = 1; return "" })
		m.notify(a, replies, "replies")
		m.actors[2].mortal = true
		a.enabled = func(s *state) bool { return s.pc[2] == pcDead }
	}
	if c.driverClose {
		a, _ := m.actor("close")
		a.step("close", func(s *state) string { s.vars[closed] = 1; return "" })
		a.step("tell closed", func(s *state) string { s.vars[tellClosed] = 1; return "" })
		m.notify(a, replies, "replies")
		m.notify(a, space[0], "space 0")
		m.notify(a, space[1], "space 1")
	}
	return m
}

// driver is Driver.Recv and Release.
func (c repliesModel) driver(m *model, sent, taken, left [2]int, dropped, closed, replies int,
	space, rings [2]int) {
	a, id := m.actor("driver")
	// locals; at takes two, held is a rank plus 1
	const next, at, held, alone, looked, waits = 0, 1, 3, 4, 5, 6
	finished := func(s *state) bool {
		return s.vars[left[0]] != 0 && (s.vars[left[1]] != 0 || s.vars[dropped] != 0)
	}
	a.label("recv")
	a.local("held?", func(s *state) string {
		return []string{"wait", "release 0",
			"release 1"}[s.locals[id][held]]
	})
	for r := range 2 {
		a.label(fmt.Sprint("release ", r))
		a.step(fmt.Sprint("free ", r), func(s *state) string {
			s.locals[id][held] = 0
			s.vars[taken[r]] = s.locals[id][at+r]
			return ""
		})
		m.notify(a, space[r], fmt.Sprint("space ", r))
		a.local("released", func(*state) string { return "wait" })
	}
	a.label("wait")
	a.load(c.driverClose, "ended", func(s *state) string {
		if s.vars[closed] != 0 {
			return "gave up"
		}
		s.locals[id][alone] = 1
		return ""
	})
	a.load(c.leave, "left? 0", func(s *state) string {
		s.locals[id][alone] &= s.vars[left[0]]
		return ""
	})
	a.load(c.leave || c.mortalRank, "gone? 1", func(s *state) string {
		s.locals[id][alone] &= s.vars[left[1]] | s.vars[dropped]
		s.locals[id][looked] = 0
		return ""
	})
	a.label("scan")
	a.local("turn", func(s *state) string {
		if s.locals[id][looked]++; s.locals[id][looked] > 2 {
			s.locals[id][looked] = 0
			if s.locals[id][alone] != 0 {
				return "alone"
			}
			return "pause"
		}
		r := s.locals[id][next]
		s.locals[id][next] = 1 - r
		return fmt.Sprint("check ", r)
	})
	for r := range 2 {
		a.label(fmt.Sprint("check ", r))
		a.step(fmt.Sprint("check ", r), func(s *state) string {
			if s.vars[sent[r]] == s.locals[id][at+r] {
				return "scan"
			}
			return ""
		})
		a.step(fmt.Sprint("read ", r), func(s *state) string {
			if n := s.vars[rings[r]+int(s.locals[id][at+r])%c.cells]; n != s.locals[id][at+r]+1 {
				m.fail("the driver got record %d of rank %d, not %d", n-1, r, s.locals[id][at+r])
			}
			s.locals[id][at+r]++
			s.locals[id][held] = int8(r) + 1
			s.locals[id][looked], s.locals[id][alone] = 0, 0
			return "received"
		})
	}
	a.label("pause")
	m.pause(a, id, replies, "replies", waits, "wait", "received")
	a.local("again", func(*state) string { return "recv" })
	a.label("alone")
	a.local("alone", func(s *state) string {
		for r := range 2 {
			if s.locals[id][at+r] != s.vars[sent[r]] {
				m.fail("the driver ends before it has got all records of rank %d", r)
			}
		}
		return ""
	})
	a.label("gave up")
	a.step("cancel in the end", func(s *state) string {
		if s.locals[id][waits] == stageAnnounced {
			s.vars[replies]--
		}
		return "end"
	})
	a.stuck = func(s *state) bool {
		return s.vars[sent[0]] != s.locals[id][at] || s.vars[sent[1]] != s.locals[id][at+1] ||
			s.vars[closed] != 0 || finished(s)
	}
}

// rank is Rank.Send for all its records, then Close.
func (c repliesModel) rank(m *model, r, sent, taken, left, closed, replies, space, ring int) {
	a, id := m.actor(fmt.Sprint("rank ", r))
	const tail, limit, waits = 0, 1, 2
	a.local("begin", func(s *state) string { s.locals[id][limit] = int8(c.cells); return "" })
	a.label("await")
	a.load(c.driverClose, "ended", func(s *state) string {
		if s.vars[closed] != 0 {
			return "gave up"
		}
		if s.locals[id][tail] < s.locals[id][limit] {
			return "room"
		}
		return ""
	})
	a.step("head", func(s *state) string {
		s.locals[id][limit] = s.vars[taken] + int8(c.cells)
		if s.locals[id][tail] < s.locals[id][limit] {
			return "room"
		}
		return ""
	})
	m.pause(a, id, space, "space", waits, "await", "room")
	a.step("write", func(s *state) string {
		s.vars[ring+int(s.locals[id][tail])%c.cells] = s.locals[id][tail] + 1
		s.locals[id][tail]++
		return ""
	})
	a.step("publish", func(s *state) string { s.vars[sent] = s.locals[id][tail]; return "" })
	m.notify(a, replies, "replies")
	a.local("next", func(s *state) string {
		switch {
		case int(s.locals[id][tail]) < c.records:
			return "await"
		case c.leave:
			return "leave"
		}
		return "end"
	})
	a.label("leave")
	a.step("leave", func(s *state) string { s.vars[left] = 1; return "" })
	m.notify(a, replies, "replies")
	a.local("left", func(*state) string { return "end" })
	a.label("gave up")
	a.step("cancel in the end", func(s *state) string {
		if s.locals[id][waits] == stageAnnounced {
			s.vars[space]--
		}
		return "end"
	})
	a.stuck = func(s *state) bool {
		return s.vars[closed] != 0 ||
			s.locals[id][tail] < s.vars[taken]+int8(c.cells)
	}
}

var repliesModels = map[string]repliesModel{
	"two ranks":                  {cells: 2, records: 3},
	"rings of one cell":          {cells: 1, records: 3},
	"the ranks leave":            {cells: 1, records: 2, leave: true},
	"a rank dies, one leaves":    {cells: 1, records: 2, leave: true, mortalRank: true},
	"the driver closes":          {cells: 1, records: 2, driverClose: true},
	"the driver closes, a death": {cells: 1, records: 1, driverClose: true, mortalRank: true},
}

func TestModelReplies(t *testing.T) {
	for name, c := range repliesModels {
		t.Run(name, func(t *testing.T) {
			r := c.build().check()
			if r.violation != "" {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}

func TestModelRepliesNeedEveryStep(t *testing.T) {
	for _, c := range []struct{ model, actor, without, want string }{
		{"rings of one cell", "rank 0", "bump replies", "sleeps"},
		{"rings of one cell", "rank 1", "wake replies", "sleeps"},
		{"rings of one cell", "rank 1", "recheck space", "sleeps"},
		{"rings of one cell", "driver", "recheck replies", "sleeps"},
		{"rings of one cell", "driver", "bump space 1", "sleeps"},
		{"rings of one cell", "driver", "wake space 0", "sleeps"},
		{"a rank dies, one leaves", "drop", "wake replies", "sleeps"},
		{"the driver closes", "close", "bump replies", "sleeps"},
		{"the driver closes", "close", "bump space 0", "sleeps"},
	} {
		t.Run(strings.Join([]string{c.model, c.actor, c.without}, "/"), func(t *testing.T) {
			m := repliesModels[c.model].build()
			if !m.without(c.actor, c.without) {
				t.Fatal("no such step")
			}
			if r := m.check(); !strings.Contains(r.violation, c.want) {
				t.Errorf("found %q, want %q (%d states)", r.violation, c.want, r.states)
			}
		})
	}
}
