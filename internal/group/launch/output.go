package launch

import (
	"fmt"
	"io"
)

// Line is one that a rank printed, without its end.
type Line struct {
	Rank int
	// Place is what layout.Suffix says of the rank.
	Place, Node string
	PID         int
	Text        string
}

// Output receives what ranks of this host print. Several may call it at once.
type Output func(Line)

// Print returns the Output for people: lines with their rank before them, one Write each.
func Print(to io.Writer) Output {
	return func(l Line) { fmt.Fprintf(to, "[rank %d%s] %s\n", l.Rank, l.Place, l.Text) }
}
