package constrain

import "slices"

// thread is one way to read the text so far: the row at the last boundary between lexemes, and the
// lexer state since. inside says that there is text since.
type thread struct {
	row    *row
	lex    int32
	inside bool
}

// maxThreads is how many ways to cut a text without a lexer are followed at once.
const maxThreads = 256

// advanceAll goes on by a byte with several threads, of which it appends what becomes of them to
// out. Lexemes that end at one place are one row, whatever came before.
func (c *Compiled) advanceAll(root *row, at []thread, b byte, out []thread) []thread {
	var buf [8]ending
	endings := buf[:0]
	from := len(out)
	for _, t := range at {
		s := c.lx.step(t.lex, b)
		if s == deadState {
			continue
		}
		to := &c.lx.states[s]
		if to.ends != 0 {
			if e := (ending{t.row, to.ends}); !slices.Contains(endings, e) {
				endings = append(endings, e)
			}
		}
		if next := (thread{t.row, s, true}); !to.final && !slices.Contains(out[from:], next) {
			out = append(out, next)
		}
	}
	if len(endings) > 0 {
		r := c.scanAll(root, endings)
		out = append(out, thread{row: r, lex: r.lex})
	}
	if len(out)-from > maxThreads {
		c.crowded = true
	}
	return out
}

// walkThreads is walk without a lexer's greed: every level has a set of threads.
func (c *Compiled) walkThreads(root *row, t trie, from, to int, start thread, mask []uint32) {
	all := append(c.threads[:0], start)
	ends := append(c.ends[:0], 0, 1) // level i has the threads from ends[i] to ends[i+1]
	for p := from; p < to; {
		n := t[p]
		level := len(ends) - 2
		size := len(all)
		all = c.advanceAll(root, all[ends[level]:ends[level+1]], n.byte(), all)
		c.fuel--
		if c.spent() {
			break
		}
		if len(all) == size {
			p += n.size()
			level = max(level-(n.pops()-1), 0)
		} else {
			if tok := n.token(); tok != noToken {
				mask[tok>>5] |= 1 << (tok & 31)
			}
			ends = append(ends, len(all))
			level++
			if n.size() == 1 {
				level = max(level-n.pops(), 0)
			}
			p++
		}
		ends = ends[:level+2]
		all = all[:ends[level+1]]
	}
	c.threads, c.ends = all[:0], ends[:0]
}
