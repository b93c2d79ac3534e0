package chaos

import (
	"bytes"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// raster is a canvas that becomes a PNG file. Lengths are multiplied by scale.
type raster struct {
	img   *image.RGBA
	scale float64
	faces map[float64]font.Face // by size
}

func newRaster(width, height, scale int) (*raster, error) {
	c := &raster{img: image.NewRGBA(image.Rect(0, 0, width*scale, height*scale)), scale: float64(scale),
		faces: map[float64]font.Face{}}
	draw.Draw(c.img, c.img.Rect, image.NewUniform(paperColour), image.Point{}, draw.Src)
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("font of the picture: %w", err)
	}
	for _, size := range []float64{fontSize, smallFontSize} {
		c.faces[size], err = opentype.NewFace(f, &opentype.FaceOptions{Size: size * c.scale, DPI: 72,
			Hinting: font.HintingFull})
		if err != nil {
			return nil, fmt.Errorf("font of the picture: %w", err)
		}
	}
	return c, nil
}

// dash is the length of a dash and of the gap after it.
const dash = 3

func (c *raster) line(points []point, s stroke) {
	z := vector.NewRasterizer(c.img.Rect.Dx(), c.img.Rect.Dy())
	for i := 1; i < len(points); i++ {
		from, to := points[i-1], points[i]
		if !s.dashed {
			c.segment(z, from, to, s.width)
			continue
		}
		length := math.Hypot(to.x-from.x, to.y-from.y)
		along := func(d float64) point {
			q := min(1, d/length)
			return point{from.x + q*(to.x-from.x), from.y + q*(to.y-from.y)}
		}
		for d := 0.0; d < length; d += 2 * dash {
			c.segment(z, along(d), along(d+dash), s.width)
		}
	}
	z.Draw(c.img, c.img.Rect, image.NewUniform(s.colour), image.Point{})
}

// segment adds a straight line: a rectangle that is half the width longer at both ends, so that
// those of a polyline have no gaps between them.
func (c *raster) segment(z *vector.Rasterizer, from, to point, width float64) {
	length := math.Hypot(to.x-from.x, to.y-from.y)
	if length == 0 {
		return
	}
	half := width / 2
	ux, uy := (to.x-from.x)/length*half, (to.y-from.y)/length*half
	from, to = point{from.x - ux, from.y - uy}, point{to.x + ux, to.y + uy}
	corner := func(x, y float64) (float32, float32) { return float32(x * c.scale), float32(y * c.scale) }
	z.MoveTo(corner(from.x-uy, from.y+ux))
	z.LineTo(corner(to.x-uy, to.y+ux))
	z.LineTo(corner(to.x+uy, to.y-ux))
	z.LineTo(corner(from.x+uy, from.y-ux))
	z.ClosePath()
}

func (c *raster) label(l label) {
	face := c.faces[l.size]
	width := font.MeasureString(face, l.text).Ceil()
	m := face.Metrics()
	height := (m.Ascent + m.Descent).Ceil()
	text := image.NewAlpha(image.Rect(0, 0, width, height))
	d := font.Drawer{Dst: text, Src: image.Opaque, Face: face, Dot: fixed.P(0, m.Ascent.Ceil())}
	d.DrawString(l.text)
	before := map[string]int{"": 0, "middle": width / 2, "end": width}[l.anchor]
	x, y := int(l.at.x*c.scale), int(l.at.y*c.scale)
	var mask image.Image = text
	place := image.Rect(x-before, y-m.Ascent.Ceil(), x-before+width, y-m.Ascent.Ceil()+height)
	if l.upwards {
		mask = upwards(text)
		place = image.Rect(x-m.Ascent.Ceil(), y+before-width, x-m.Ascent.Ceil()+height, y+before)
	}
	draw.DrawMask(c.img, place, image.NewUniform(l.colour), image.Point{}, mask, image.Point{}, draw.Over)
}

// upwards turns a picture by a quarter, against the clock.
func upwards(of *image.Alpha) *image.Alpha {
	width, height := of.Rect.Dx(), of.Rect.Dy()
	turned := image.NewAlpha(image.Rect(0, 0, height, width))
	for x := range width {
		for y := range height {
			turned.SetAlpha(y, width-1-x, of.AlphaAt(x, y))
		}
	}
	return turned
}

func (c *raster) encode() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, c.img)
	return b.Bytes(), err
}
