package chaos

import (
	"fmt"
	"strings"
	"testing"
)

// TestPicture draws a run whose only fault is in its middle, with nothing after it: the tokens are
// at the top on the left, and at the bottom on the right.
func TestPicture(t *testing.T) {
	r := &Report{Timeline: []int{4, 4, 4, 4, 4, 0, 0, 0, 0, 0}, Marks: []Mark{{0.5, "a<b"}},
		Asked: 7}
	drawn := string(SVG(r, 1))
	const slot = (plotWidth - leftMargin - rightMargin) / 10
	for _, want := range []string{"1 faults, 0 of 7 requests lost", ">a&lt;b<",
		fmt.Sprintf("%d.0,%d.0 ", leftMargin+slot/2, topMargin),
		fmt.Sprintf("%d.0,%d.0 \"", plotWidth-rightMargin-slot/2, plotHeight-bottomMargin),
		fmt.Sprintf(`"%d.0,%d.0 `, leftMargin+5*slot, topMargin-8)} {
		if !strings.Contains(drawn, want) {
			t.Errorf("no %q in %s", want, drawn)
		}
	}
}

// TestView wants the events around a fault, those among them that come before the pause, and no
// others.
func TestView(t *testing.T) {
	r := &Report{Marks: []Mark{{0.505, "kill"}}}
	total := 0
	for i := range 100 {
		total++
		at := float64(i) / 100
		if i > 52 {
			at += 0.2
		}
		r.Client = append(r.Client, Event{at, 0, 1, total})
	}
	want := `      s  after ms  request  token
         … 47 events
  0.470      10.0        0     48
  0.480      10.0        0     49
  0.490      10.0        0     50
  0.500      10.0        0     51
  0.505  ----- fault: kill
  0.510      10.0        0     52
  0.520      10.0        0     53
  0.730     210.0        0     54
  0.740      10.0        0     55
  0.750      10.0        0     56
  0.760      10.0        0     57
`
	if got := string(View(r)); got != want {
		t.Errorf("%s", got)
	}
}
