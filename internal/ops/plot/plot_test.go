package plot

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// TestPicture draws one of each: the document is XML, and text in it is escaped.
func TestPicture(t *testing.T) {
	p := New(200, 100)
	p.Line(Stroke{Colour: Blue, Dashed: true}, Point{1, 2}, Point{3, 4})
	p.Rect(1, 2, 3, 4, Orange)
	p.Dot(Point{5, 6}, Green)
	p.Arrow(Point{1, 2}, Point{1, 50}, Pink)
	p.Text(Text{At: Point{9, 9}, Upwards: true, Bold: true, Text: `a<b & "c"`})
	seen, text := map[string]int{}, ""
	for d := xml.NewDecoder(strings.NewReader(string(p.SVG()))); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			seen[x.Name.Local]++
		case xml.CharData:
			text += string(x)
		}
	}
	want := map[string]int{"svg": 1, "rect": 2, "polyline": 1, "circle": 1, "path": 2, "text": 1}
	for name, n := range want {
		if seen[name] != n {
			t.Errorf("%d elements %s, not %d", seen[name], name, n)
		}
	}
	if !strings.Contains(text, `a<b & "c"`) {
		t.Errorf("text %q", text)
	}
}
