package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"sync"
)

// Late has the parts of an answer that are JSON already: what encoding/json is given as JSON it
// reads again, byte for byte. They are put in once it has written the rest. The zero Late has none.
type Late struct{ parts [][]byte }

// lateMark stands for a part. No client knows it, so that no text of an answer has it.
var lateMark = sync.OnceValue(func() json.RawMessage {
	return json.RawMessage(`"` + rand.Text() + `"`)
})

// Add is what stands for a part in the answer, where parts stand in the order in which they are
// added.
func (l *Late) Add(part []byte) json.RawMessage {
	l.parts = append(l.parts, part)
	return lateMark()
}

// Pieces are the answer in order, from what encoding/json has made of it.
func (l *Late) Pieces(answer []byte) [][]byte {
	var list [][]byte
	for _, part := range l.parts {
		before, after, _ := bytes.Cut(answer, lateMark())
		list = append(list, before, part)
		answer = after
	}
	return append(list, answer)
}
