package rayactor

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// row is what is known of one rank.
type row struct {
	Bundle int
	Node   string
	PID    int
	Status string
}

// set changes a rank's row.
func (l *Launcher) set(rank int, change func(*row)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.table[rank])
}

// logTable logs how far each rank has come, one line each.
func (l *Launcher) logTable() {
	l.mu.Lock()
	text := table(l.table)
	l.mu.Unlock()
	for line := range strings.Lines(text) {
		l.o.Log.Error(strings.TrimRight(line, "\n"))
	}
}

func table(rows []row) string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "rank\tbundle\tnode\tpid\tstatus")
	for rank, r := range rows {
		node, status := r.Node, r.Status
		if node == "" {
			node = "-"
		}
		if status == "" {
			status = "not placed"
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\n", rank, r.Bundle, node, r.PID, status)
	}
	w.Flush()
	return s.String()
}
