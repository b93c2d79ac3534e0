package cuda

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// form is what the bytes of a weight are, as it is stored: where codes have what belongs to them is
// counted from the first byte, 0 for nothing.
type form struct {
	Out, In, Chunks, Padded int
	Codes                   *codedForm `json:",omitempty"`
}

type codedForm struct {
	Type                          compute.CodeType
	Values                        [16]float32
	Numbers, Scale, Offset, Order driver.Ptr
	ScaleIsF16, OffsetIsF16       bool
	Group, Lead, LD, Bytes        int
}

// Packed is what a weight is made of, valid until it is freed.
func (d *Device) Packed(w compute.Weight) ([]compute.Packed, error) {
	d.wait()
	if d.err != nil {
		return nil, d.err
	}
	var parts []compute.Packed
	for _, w := range partsOf(w) {
		text, err := json.Marshal(w.form())
		if err != nil {
			return nil, fmt.Errorf("form of a weight: %w", err)
		}
		parts = append(parts, compute.Packed{Form: text, Kept: kept{w}})
	}
	return parts, nil
}

// partsOf are what a weight was joined of.
func partsOf(w compute.Weight) []*weight {
	if j, ok := w.(*joined); ok {
		return j.parts
	}
	return []*weight{w.(*weight)}
}

func (w *weight) form() form {
	f := form{Out: w.out, In: w.in, Chunks: w.chunks, Padded: w.padded}
	if c := w.codes; c != nil {
		from := func(p driver.Ptr) driver.Ptr {
			if p == 0 {
				return 0
			}
			return p - w.data
		}
		f.Codes = &codedForm{Type: c.codeType, Values: c.values, Numbers: from(c.numbers),
			Scale: from(c.scale &^ 1), Offset: from(c.offset &^ 1), Order: from(c.order),
			ScaleIsF16: c.scale&1 != 0, OffsetIsF16: c.offset&1 != 0, Group: c.group,
			Lead: c.lead, LD: c.ld, Bytes: w.bytes}
	}
	return f
}

// FromPacked makes the weight again that Packed returned the parts of.
func (d *Device) FromPacked(parts []compute.Packed) (compute.Weight, error) {
	var list []compute.Weight
	for _, p := range parts {
		w, err := d.fromPacked(&p)
		if err != nil {
			for _, w := range list {
				w.Free()
			}
			return nil, err
		}
		list = append(list, w)
	}
	if len(list) == 0 {
		return nil, errors.New("a packed weight without parts")
	}
	return d.Join(list...), nil
}

func (d *Device) fromPacked(p *compute.Packed) (compute.Weight, error) {
	var f form
	if err := json.Unmarshal(p.Form, &f); err != nil {
		return nil, fmt.Errorf("form of a packed weight: %w", err)
	}
	if need := f.bytes(d.dtype); need == 0 || need != len(p.Data) {
		return nil, fmt.Errorf("a packed weight has %d bytes, its form %s", len(p.Data), p.Form)
	}
	w := d.newWeight(len(p.Data))
	w.out, w.in, w.chunks, w.padded = f.Out, f.In, f.Chunks, f.Padded
	if c := f.Codes; c != nil {
		w.codes = c.at(w.data)
	}
	if err := errors.Join(d.send(w.data, p.Data), d.err); err != nil {
		w.Free()
		return nil, err
	}
	return w, nil
}

// bytes are those of a weight of the form, 0 for one that is none.
func (f *form) bytes(dtype compute.DType) int {
	if f.Out < 1 || f.In < 1 || f.Chunks < 1 || f.Padded < 1 {
		return 0
	}
	if f.Codes == nil {
		return dtype.Size() * f.Out * f.Chunks * f.Padded
	}
	return f.Codes.Bytes
}

// at is what codes have, where they begin at an address.
func (f *codedForm) at(data driver.Ptr) *coded {
	at := func(p driver.Ptr, odd bool) driver.Ptr {
		switch {
		case p == 0:
			return 0
		case odd:
			p++
		}
		return data + p
	}
	return &coded{codeType: f.Type, values: f.Values, numbers: at(f.Numbers, false),
		scale: at(f.Scale, f.ScaleIsF16), offset: at(f.Offset, f.OffsetIsF16),
		order: at(f.Order, false), group: f.Group, lead: f.Lead, ld: f.LD}
}

// kept is the bytes of a weight.
type kept struct{ *weight }

// Size implements compute.KeptBytes.
func (k kept) Size() int { return k.bytes }

// Read implements compute.KeptBytes.
func (k kept) Read(visit func(piece []byte) error) error {
	all := slices.Values([]run{{k.data, k.bytes}})
	return k.d.transfer(all, func(l *lane) error {
		if err := l.copied(false); err != nil {
			return fmt.Errorf("copy weights from the device: %w", err)
		}
		return visit(l.pinned[:l.used])
	})
}
