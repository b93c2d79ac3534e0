package layers

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Store has what earlier loads have made of the same share of the same checkpoint, on a device of
// the same kind. Its bytes outlive the layers.
type Store interface {
	// Entry is what was made under a key; false if nothing was.
	Entry(key string) (Entry, bool)
}

// Entry is a weight, or what is known of a table, as it is stored.
type Entry struct {
	// Key says what it was made of: which parts of which tensors, and how.
	Key string
	// Read is how many bytes of the checkpoint that was.
	Read int64
	// Parts are the device's. A table has one, whose form is its sums, and which has no data.
	Parts []compute.Packed
}

// Reuse has weights that are in the store not made again.
func (l *Loader) Reuse(s Store) { l.store = s }

// Made says that some of the layers' weights did not come from the store.
func (l *Loader) Made() bool { return l.made }

// Entries are what the layers were made of, to be stored, valid until they are freed.
func (l *Loader) Entries() ([]Entry, error) {
	all := make([]Entry, 0, len(l.entries)+len(l.tables))
	for i, e := range l.entries {
		var err error
		if e.Parts, err = l.dev.Packed(l.weights[i]); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	for i := range l.tables {
		t := &l.tables[i]
		var sums []byte
		for _, sum := range t.sums {
			sums = binary.LittleEndian.AppendUint32(sums, sum)
		}
		all = append(all, Entry{Key: tableKey(t.Tensor), Parts: []compute.Packed{{Form: sums}}})
	}
	return all, nil
}

// stored is the stored weight of an entry's key, whose Read it sets; nil if there is none that the
// device knows.
func (l *Loader) stored(e *Entry) compute.Weight {
	if l.store == nil {
		return nil
	}
	old, ok := l.store.Entry(e.Key)
	if !ok {
		return nil
	}
	w, err := l.dev.FromPacked(old.Parts)
	if err != nil {
		return nil // it is made, as if nothing were stored
	}
	e.Read = old.Read
	return w
}

// storedSums are the sums of a table, nil if they are not stored, or if its elements must be looked
// at.
func (l *Loader) storedSums(t checkpoint.Tensor) []uint32 {
	if l.store == nil || l.strict {
		return nil
	}
	e, ok := l.store.Entry(tableKey(t))
	if !ok || len(e.Parts) != 1 {
		return nil
	}
	form := e.Parts[0].Form
	sums := make([]uint32, len(form)/4)
	if len(sums) == 0 || len(sums) != (len(t.Data)+pieceSize-1)/pieceSize {
		return nil
	}
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(form[4*i:])
	}
	return sums
}

func tableKey(t checkpoint.Tensor) string {
	return fmt.Sprintf("table %q %v %v", t.Name, t.DType, t.Shape)
}

// weightKey says all that a weight depends on but the checkpoint and the device.
func weightKey(s Scheme, chunks int, parts []part) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s in %d chunks", s.name(), chunks)
	for i := range parts {
		p := &parts[i]
		fmt.Fprintf(&b, " | %q %d %d [%d:%d,%d:%d]", p.module, p.rows, p.cols, p.rowLo, p.rowHi,
			p.colLo, p.colHi)
		if p.turned {
			b.WriteString(" turned")
		}
		if p.conv1D {
			b.WriteString(" of [in][out]")
		}
		if p.stack != nil {
			fmt.Fprintf(&b, " of %+v", *p.stack)
		}
	}
	return b.String()
}
