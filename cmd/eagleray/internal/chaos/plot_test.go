package chaos

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"
)

// TestPictures draws a run whose only fault is in its middle, with nothing after it.
func TestPictures(t *testing.T) {
	r := &Report{Timeline: []int{4, 4, 4, 4, 4, 0, 0, 0, 0, 0}, Marks: []Mark{{0.5, "a<b"}}, Asked: 7}
	drawn, err := SVG(r, 1)
	if err != nil || !strings.Contains(string(drawn), "1 faults, 0 of 7 requests lost") ||
		!strings.Contains(string(drawn), ">a&lt;b<") {
		t.Errorf("%s, %v", drawn, err)
	}
	if drawn, err = PNG(r, 1); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(drawn))
	if err != nil || img.Bounds() != image.Rect(0, 0, 2*plotWidth, 2*plotHeight) {
		t.Fatalf("%v, %v", img.Bounds(), err)
	}
	// The tokens are at the top on the left, and at the bottom on the right.
	count := func(c color.RGBA, within image.Rectangle) (n int) {
		for x := within.Min.X; x < within.Max.X; x++ {
			for y := within.Min.Y; y < within.Max.Y; y++ {
				if img.At(x, y) == c {
					n++
				}
			}
		}
		return n
	}
	middle := leftMargin + plotWidth - rightMargin // in pixels of the file
	top, bottom := 2*topMargin, 2*(plotHeight-bottomMargin)
	left := image.Rect(2*leftMargin, top-4, middle-60, top+4)
	right := image.Rect(middle+60, bottom-4, 2*(plotWidth-rightMargin), bottom+4)
	other := image.Rect(middle+60, top-4, 2*(plotWidth-rightMargin), top+4)
	if count(tokenColour, left) < 500 || count(tokenColour, right) < 500 || count(tokenColour, other) > 0 {
		t.Errorf("%d, %d and %d pixels", count(tokenColour, left), count(tokenColour, right),
			count(tokenColour, other))
	}
	fault := image.Rect(middle-4, top, middle+4, bottom)
	if n := count(faultColour, fault); n < 200 {
		t.Errorf("%d pixels of the fault", n)
	}
	name := image.Rect(middle-40, top-20, middle-4, top+60)
	if n := count(faultColour, name); n < 20 {
		t.Errorf("%d pixels of its name", n)
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
