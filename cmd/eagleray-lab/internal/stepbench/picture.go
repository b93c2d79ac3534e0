package stepbench

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
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

// picture is an SVG of a few steps on one axis of time.
type picture struct {
	b        bytes.Buffer
	from, to int64
}

// WritePicture draws a few measured steps as SVG: the same moments as in WriteTrace.
func WritePicture(w io.Writer, r *Report) error {
	first, stages := len(r.Driver)/2, r.Layout.Sizes().PP
	last := min(first+drawnSteps+stages, len(r.Driver)-1)
	if last < first+2 {
		return fmt.Errorf("a picture of %d steps: at least 3 are needed after the middle", last+1-first)
	}
	p := &picture{from: r.Driver[first].Began.UnixNano(), to: r.Driver[last].Sent.UnixNano()}
	// Of plans before the first, ranks are still at work.
	steps := r.Driver[max(0, first-stages-1) : last+1]
	of := map[uint64]int{}
	for i := range steps {
		of[steps[i].Plan] = i
	}
	lanes := 2 + len(r.Ranks)
	height := top + lanes*lane + 44
	p.open(height, r)
	for i := range lanes {
		p.printf(`<text x="12" y="%d">%s</text>`, p.y(i)+bar/2+4, r.laneName(i))
		p.printf(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#d8dee6"/>`, left, p.y(i)+bar/2,
			pictureWidth-right, p.y(i)+bar/2)
	}
	for i := range steps {
		d := &steps[i]
		p.bar(0, d.Began.UnixNano(), d.Made.UnixNano(), "#4c78a8", "")
		p.bar(0, d.Made.UnixNano(), d.Sent.UnixNano(), "#1f4e79", fmt.Sprintf("%d", d.Plan))
		p.bar(1, d.Arrived.UnixNano(), d.Applied.UnixNano(), "#b8860b", fmt.Sprintf("%d", d.Plan))
	}
	for rank, list := range r.computed() {
		for i := range list {
			x := &list[i]
			at, ok := of[x.Plan]
			if !ok {
				continue
			}
			p.rank(rank, x, rank == r.Output)
			p.arrow(0, steps[at].Sent.UnixNano(), 2+rank, x.Received, "#1f4e79")
			if rank == r.Output {
				p.arrow(2+rank, x.Executed, 1, steps[at].Arrived.UnixNano(), "#b8860b")
			}
		}
	}
	p.axis(height)
	p.printf("</svg>\n")
	_, err := w.Write(p.b.Bytes())
	return err
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

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

func (p *picture) y(row int) int { return top + row*lane }

// x is where a moment is, and whether it is in the picture.
func (p *picture) x(at int64) (float64, bool) {
	x := left + float64(at-p.from)*(pictureWidth-left-right)/float64(p.to-p.from)
	return x, at >= p.from && at <= p.to
}

func (p *picture) open(height int, r *Report) {
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="system-ui, sans-serif" font-size="12" fill="#1c2733">`, pictureWidth, height,
		pictureWidth, height)
	p.printf(`<rect width="100%%" height="100%%" fill="#ffffff"/>`)
	p.printf(`<defs><clipPath id="c"><rect x="%d" y="0" width="%d" height="%d"/></clipPath></defs>`,
		left, pictureWidth-left-right, height)
	ahead, way := r.Ahead(), "before"
	if ahead < 0 {
		ahead, way = -ahead, "after"
	}
	p.printf(`<text x="12" y="24" font-size="15" font-weight="600">Steps of %d requests: a plan is `+
		`sent %d µs %s the tokens of the one before it are known (median of %d)</text>`, r.Running,
		ahead.Microseconds(), way, r.Steps)
	p.printf(`<text x="12" y="44" fill="#5b6b7b">Numbers are those of plans. Blue arrows carry ` +
		`plans to the ranks, yellow ones results back.</text>`)
}

// bar draws something that lasted, with a label above it.
func (p *picture) bar(row int, from, to int64, colour, label string) {
	x1, _ := p.x(from)
	x2, _ := p.x(to)
	if x2 < left || x1 > pictureWidth-right {
		return
	}
	width := max(x2-x1, 1)
	p.printf(`<rect clip-path="url(#c)" x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`, x1,
		p.y(row), width, bar, colour)
	if _, ok := p.x(to); !ok || label == "" || x2+40 > pictureWidth-right {
		return
	}
	p.printf(`<text x="%.1f" y="%d" fill="%s" font-size="11">%s</text>`, x1, p.y(row)-5, colour,
		label)
}

// rank draws a plan on a rank.
func (p *picture) rank(rank int, x *queue.StepTimes, output bool) {
	n := 2 + rank
	p.bar(n, x.Received, x.Started, "#dbe9f4", "")
	p.bar(n, x.Started, x.Executed, "#54a24b", "")
	if output {
		p.bar(n, x.Executed, x.Answered, "#b8860b", "")
	}
	x1, _ := p.x(x.Started)
	x2, _ := p.x(x.Executed)
	x1, x2 = max(x1, left), min(x2, pictureWidth-right)
	if x2-x1 > 90 {
		p.printf(`<text x="%.1f" y="%d" fill="#ffffff" text-anchor="middle">execute %d</text>`,
			(x1+x2)/2, p.y(n)+bar/2+4, x.Plan)
	}
}

// arrow draws the way of a record from one lane to another.
func (p *picture) arrow(from int, at int64, to int, then int64, colour string) {
	x1, in1 := p.x(at)
	x2, in2 := p.x(then)
	if !in1 || !in2 {
		return
	}
	y1, y2, tip := p.y(from)+bar, p.y(to), -6
	if from > to {
		y1, y2, tip = p.y(from), p.y(to)+bar, 6
	}
	p.printf(`<path d="M%.1f %d L%.1f %d" stroke="%s" fill="none"/>`, x1, y1, x2, y2, colour)
	p.printf(`<path d="M%.1f %d l-3 %d l6 0 z" fill="%s"/>`, x2, y2, tip, colour)
}

// axis draws the time below the lanes.
func (p *picture) axis(height int) {
	y := height - 34
	p.printf(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#5b6b7b"/>`, left, y,
		pictureWidth-right, y)
	span := time.Duration(p.to - p.from)
	every := time.Microsecond
	for _, n := range []time.Duration{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000} {
		if every = n * time.Microsecond; span/every <= 10 {
			break
		}
	}
	for at := time.Duration(0); at <= span; at += every {
		x, _ := p.x(p.from + int64(at))
		p.printf(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#5b6b7b"/>`, x, y, x, y+5)
		p.printf(`<text x="%.1f" y="%d" text-anchor="middle" fill="#5b6b7b">%d µs</text>`, x, y+20,
			at.Microseconds())
	}
}
