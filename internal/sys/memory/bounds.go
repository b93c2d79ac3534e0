// Package memory says beforehand what the processes of a server will take of each host's memory,
// and whether that is there: a plan is made out of what each rank takes and of the bounds of each
// host, before a byte of the weights is read. It is pure: machine reads the bounds, model says what
// a rank takes.
package memory

import "fmt"

// Bound limits what processes use together, in bytes.
type Bound struct {
	// From says whose it is, for people: the host's, or the file of a control group.
	From string `json:"from"`
	// Limit is the most that may be in use, Left what is not. Files that the system keeps, and
	// gives up for any other need, are not in use.
	Limit int64 `json:"limit"`
	Left  int64 `json:"left"`
}

// Bounds are all those that hold for the processes of a host; none means that nothing is known.
type Bounds []Bound

// Room is how much may be used of the bounds: what is left of each, and no more than a share of its
// limit. By is the bound that allows the least.
func (b Bounds) Room(share float64) (bytes int64, by Bound, known bool) {
	for _, x := range b {
		if room := x.room(share); !known || room < bytes {
			bytes, by, known = room, x, true
		}
	}
	return bytes, by, known
}

// Left is what is left of the bound that has the least left.
func (b Bounds) Left() (bytes int64, known bool) {
	bytes, _, known = b.Room(1)
	return bytes, known
}

func (b *Bound) room(share float64) int64 {
	return max(0, min(b.Left, int64(float64(b.Limit)*share)))
}

// describe says how a room follows from the bound.
func (b *Bound) describe(share float64) string {
	text := fmt.Sprintf("%s of %s", size(b.Limit), b.From)
	if share < 1 && int64(float64(b.Limit)*share) < b.Left {
		return fmt.Sprintf("%g (--gpu-memory-utilization) of the %s", share, text)
	}
	return fmt.Sprintf("left of the %s", text)
}

// size is a number of bytes for people, to 1 MiB.
func size(bytes int64) string {
	if bytes >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20)
}
