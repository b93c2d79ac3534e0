package balance

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// TestTranscripts replays testdata/*.txt (see package transcripts).
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		tr := &transcript{T: t}
		return tr.command
	})
}

type transcript struct {
	*testing.T
	experts int
	ranks   Ranks
	now     []Placement
	load    [][]int64
}

func (tr *transcript) command(name string, args []string) string {
	switch name {
	case "spread":
		// Begins anew with experts, redundant ones, and the node of each rank, and prints the first
		// placement.
		//
		// Example:
		//
		// spread 8 2 nodes 0 0 1 1
		n := numbers(tr.T, append(args[:2:2], args[3:]...))
		ranks, err := Spread(n[0], n[1], n[2:])
		if err != nil {
			return err.Error() + "\n"
		}
		tr.experts, tr.ranks, tr.load = n[0], ranks, nil
		first, err := Initial(n[0], ranks)
		if err != nil {
			tr.Fatal(err)
		}
		tr.now = []Placement{first}
		return tr.show()
	case "load":
		// Sets the rows of the experts of the next layer.
		//
		// Example:
		//
		// load 90 10 10 10
		var l []int64
		for _, n := range numbers(tr.T, args) {
			l = append(l, int64(n))
		}
		if tr.load = append(tr.load, l); len(tr.load) > len(tr.now) {
			tr.now = append(tr.now, tr.now[0])
		}
		return ""
	case "plan":
		// Makes a plan for the loads, with a least gain in percent if there is one, prints it, and
		// goes on with its placements.
		//
		// Example:
		//
		// plan 5
		gain := 0.0
		if len(args) > 0 {
			gain = float64(numbers(tr.T, args)[0]) / 100
		}
		plan, err := Make(tr.load, tr.now, tr.ranks, gain, Alone)
		loads := tr.load
		tr.load = nil
		switch {
		case err != nil:
			return err.Error() + "\n"
		case plan == nil:
			return "no plan\n"
		}
		var out strings.Builder
		fmt.Fprintf(&out, "balancedness %.3f to %.3f\n", plan.Before, plan.After)
		for _, m := range plan.Moves {
			fmt.Fprintf(&out, "layer %d: expert %d of rank %d to rank %d, slot %d\n", m.Layer,
				m.Expert, m.From, m.To, m.Slot)
		}
		tr.now = plan.Layers
		out.WriteString(tr.show(loads...))
		return out.String()
	case "copies":
		// Prints where so many turns of an expert of the first layer go, of a source or everyone.
		//
		// Example:
		//
		// copies 0 turns 6 from 2
		source := Everyone
		if args[4] != "everyone" {
			source = numbers(tr.T, args[4:])[0]
		}
		n := numbers(tr.T, []string{args[0], args[2]})
		c := tr.now[0].Held(tr.experts, tr.ranks.Nodes, source)
		var ranks []string
		for turn := range n[1] {
			ranks = append(ranks, strconv.Itoa(int(c.Of(int32(n[0]), uint64(turn)))))
		}
		return "ranks " + strings.Join(ranks, " ") + "\n"
	}
	tr.Fatalf("no command %q", name)
	return ""
}

// show prints what each rank has, with its load where that is known.
func (tr *transcript) show(loads ...[]int64) string {
	var out strings.Builder
	for l, p := range tr.now {
		for r, list := range p {
			if len(tr.now) > 1 {
				fmt.Fprintf(&out, "layer %d ", l)
			}
			fmt.Fprintf(&out, "rank %d, node %d: %v", r, tr.ranks.Nodes[r], list)
			if l < len(loads) {
				fmt.Fprintf(&out, ", %.1f rows", p.Loads(loads[l])[r])
			}
			out.WriteByte('\n')
		}
	}
	return out.String()
}

func numbers(t *testing.T, args []string) []int {
	list := make([]int, len(args))
	for i, a := range args {
		var err error
		if list[i], err = strconv.Atoi(a); err != nil {
			t.Fatal(err)
		}
	}
	return list
}
