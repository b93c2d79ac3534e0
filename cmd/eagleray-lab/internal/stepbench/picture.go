package stepbench

import (
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/ops/plot"
	"github.com/eagleray/eagleray/internal/rank/calls"
)

// The colours of plans, of steps as ranks compute them, and of results.
const (
	planColour   = plot.Blue
	stepColour   = plot.Green
	resultColour = plot.Orange
	waitColour   = "#dbe9f4"
)

// Sizes of the picture in pixels.
const (
	pictureWidth = 1000
	left         = 130 // of the names of the lanes
	right        = 20
	top          = 64
	lane         = 64
	bar          = 26
	drawnSteps   = 4
)

// picture is a drawing of a few steps on one axis of time, from and to in Unix nanoseconds.
type picture struct {
	*plot.Picture
	from, to int64
}

// Picture draws a few measured steps as SVG: the same moments as in WriteTrace.
func Picture(r *Report) ([]byte, error) {
	first, stages := len(r.Driver)/2, r.Layout.Sizes().PP
	last := min(first+drawnSteps+stages, len(r.Driver)-1)
	if last < first+2 {
		return nil, fmt.Errorf("a picture of %d steps: at least 3 are needed after the middle",
			last+1-first)
	}
	lanes := 2 + len(r.Ranks)
	height := top + lanes*lane + 44
	p := &picture{Picture: plot.New(pictureWidth, height), from: r.Driver[first].Began.UnixNano(),
		to: r.Driver[last].Sent.UnixNano()}
	// Of plans before the first, ranks are still at work.
	steps := r.Driver[max(0, first-stages-1) : last+1]
	of := map[uint64]int{}
	for i := range steps {
		of[steps[i].Plan] = i
	}
	p.title(r)
	for i := range lanes {
		middle := p.y(i) + bar/2
		p.Text(plot.Text{At: plot.Point{X: 12, Y: middle + 4}, Text: r.laneName(i)})
		p.Line(plot.Stroke{Colour: plot.Grid}, plot.Point{X: left, Y: middle},
			plot.Point{X: pictureWidth - right, Y: middle})
	}
	for i := range steps {
		d := &steps[i]
		p.bar(0, d.Began.UnixNano(), d.Made.UnixNano(), plot.Sky, "")
		p.bar(0, d.Made.UnixNano(), d.Sent.UnixNano(), planColour, fmt.Sprint(d.Plan))
		p.bar(1, d.Arrived.UnixNano(), d.Applied.UnixNano(), resultColour, fmt.Sprint(d.Plan))
	}
	for rank, list := range r.computed() {
		for i := range list {
			x := &list[i]
			at, ok := of[x.Plan]
			if !ok {
				continue
			}
			p.rank(rank, x, rank == r.Output)
			p.arrow(0, steps[at].Sent.UnixNano(), 2+rank, x.Received, planColour)
			if rank == r.Output {
				p.arrow(2+rank, x.Executed, 1, steps[at].Arrived.UnixNano(), resultColour)
			}
		}
	}
	p.axis(float64(height) - 34)
	return p.SVG(), nil
}

func (r *Report) laneName(i int) string {
	switch i {
	case 0:
		return "plan and send"
	case 1:
		return "apply result"
	}
	return r.rankName(i - 2)
}

func (p *picture) y(row int) float64 { return float64(top + row*lane) }

// x is where a moment is, and whether it is in the picture.
func (p *picture) x(at int64) (float64, bool) {
	x := left + float64(at-p.from)*(pictureWidth-left-right)/float64(p.to-p.from)
	return x, at >= p.from && at <= p.to
}

func (p *picture) title(r *Report) {
	ahead, way := r.Ahead(), "before"
	if ahead < 0 {
		ahead, way = -ahead, "after"
	}
	p.Text(plot.Text{At: plot.Point{X: 12, Y: 24}, Size: 15, Bold: true,
		Text: fmt.Sprintf("Steps of %d requests: a plan is sent %d µs %s the tokens of the one "+
			"before it are known (median of %d)", r.Running, ahead.Microseconds(), way, r.Steps)})
	p.Text(plot.Text{At: plot.Point{X: 12, Y: 44}, Colour: plot.Muted,
		Text: "Numbers are those of plans. Blue arrows carry plans to the ranks, orange ones " +
			"results back."})
}

// bar draws what lasted, as far as it is in the picture, with a label above it.
func (p *picture) bar(row int, from, to int64, colour, label string) {
	x1, _ := p.x(from)
	x2, within := p.x(to)
	x1, end := max(x1, left), min(x2, pictureWidth-right)
	if x2 < left || x1 > pictureWidth-right {
		return
	}
	p.Rect(x1, p.y(row), max(end-x1, 1), bar, colour)
	if within && label != "" && x2+40 <= pictureWidth-right {
		p.Text(plot.Text{At: plot.Point{X: x1, Y: p.y(row) - 5}, Colour: colour, Size: 11,
			Text: label})
	}
}

// rank draws a plan on a rank.
func (p *picture) rank(rank int, x *calls.StepTimes, output bool) {
	n := 2 + rank
	p.bar(n, x.Received, x.Started, waitColour, "")
	p.bar(n, x.Started, x.Executed, stepColour, "")
	if output {
		p.bar(n, x.Executed, x.Answered, resultColour, "")
	}
	x1, _ := p.x(x.Started)
	x2, _ := p.x(x.Executed)
	x1, x2 = max(x1, left), min(x2, pictureWidth-right)
	if x2-x1 > 90 {
		p.Text(plot.Text{At: plot.Point{X: (x1 + x2) / 2, Y: p.y(n) + bar/2 + 4}, Anchor: "middle",
			Colour: "#ffffff", Text: fmt.Sprintf("execute %d", x.Plan)})
	}
}

// arrow draws the way of a record from one lane to another.
func (p *picture) arrow(from int, at int64, to int, then int64, colour string) {
	x1, in1 := p.x(at)
	x2, in2 := p.x(then)
	if !in1 || !in2 {
		return
	}
	y1, y2 := p.y(from)+bar, p.y(to)
	if from > to {
		y1, y2 = p.y(from), p.y(to)+bar
	}
	p.Arrow(plot.Point{X: x1, Y: y1}, plot.Point{X: x2, Y: y2}, colour)
}

// axis draws the time below the lanes.
func (p *picture) axis(y float64) {
	line := plot.Stroke{Colour: plot.Muted}
	p.Line(line, plot.Point{X: left, Y: y}, plot.Point{X: pictureWidth - right, Y: y})
	span := time.Duration(p.to - p.from)
	every := time.Microsecond
	for _, n := range []time.Duration{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000} {
		if every = n * time.Microsecond; span/every <= 10 {
			break
		}
	}
	for at := time.Duration(0); at <= span; at += every {
		x, _ := p.x(p.from + int64(at))
		p.Line(line, plot.Point{X: x, Y: y}, plot.Point{X: x, Y: y + 5})
		p.Text(plot.Text{At: plot.Point{X: x, Y: y + 20}, Anchor: "middle", Colour: plot.Muted,
			Text: fmt.Sprintf("%d µs", at.Microseconds())})
	}
}
