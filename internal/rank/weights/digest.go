package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Digest is the same for updates of the same tensors with the same bytes, and adapters of the same
// modules, on whatever machine,
// however they came, and for no others: a SHA-256 over the name, type, shape and content of each,
// in hexadecimal. It is worked out once, on all cores, from the driver's memory: the first call
// must come while that is the update's.
func (u *Update) Digest() string { return u.digest() }

func (u *Update) hash() string {
	type line struct {
		Name, DType string
		Shape       []int
		Content     [sha256.Size]byte
	}
	lines := make([]line, len(u.Tensors)) // in the order of their names
	_ = each(len(lines), func(i int) error {
		t := &u.Tensors[i]
		size, err := t.size()
		sum := sha256.Sum256(u.View(Range{t.Segment, t.Offset, size}))
		lines[i] = line{t.Name, t.DType, t.Shape, sum}
		return err // was checked when it was taken in
	})
	text, _ := json.Marshal(lines) // cannot fail with these types
	if u.Adapter != nil {
		modules, _ := json.Marshal(u.Adapter.Modules) // nor with these
		text = append(text, modules...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
