package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// maxPiece is the longest piece, in bytes, of a model that looks pieces up byte by byte: what a
// text costs grows with it. Published pieces have some 100 bytes at most.
const maxPiece = 1 << 10

// pieceTrie finds all pieces that begin at a place of a text. The children of a node lie side by
// side in the order of their bytes, so a node costs a dozen bytes and a vocabulary some megabytes.
type pieceTrie struct {
	nodes  []pieceNode
	labels []byte // the byte that leads to a node
}

type pieceNode struct {
	first int32 // of the children
	count int32
	id    int32 // of the piece that ends here, or -1
}

// newPieceTrie builds the trie of the pieces with the given ids.
func newPieceTrie(v *vocabulary, ids []int32) (*pieceTrie, error) {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b int32) int { return strings.Compare(v.text[a], v.text[b]) })
	t := &pieceTrie{nodes: []pieceNode{{id: -1}}, labels: []byte{0}}
	// parts[i] are the pieces below node i, as a range of ids, and the length of what leads there.
	type part struct{ from, to, depth int }
	parts := []part{{0, len(ids), 0}}
	for at := 0; at < len(parts); at++ {
		p := parts[at]
		node := pieceNode{first: int32(len(t.nodes)), id: -1}
		for from := p.from; from < p.to; {
			text := v.text[ids[from]]
			if len(text) > maxPiece {
				return nil, fmt.Errorf("token %d has %d bytes, more than %d", ids[from], len(text),
					maxPiece)
			}
			if len(text) == p.depth {
				node.id = ids[from]
				from++
				continue
			}
			to := from + 1
			for to < p.to && v.text[ids[to]][p.depth] == text[p.depth] {
				to++
			}
			parts = append(parts, part{from, to, p.depth + 1})
			t.nodes = append(t.nodes, pieceNode{id: -1})
			t.labels = append(t.labels, text[p.depth])
			node.count++
			from = to
		}
		t.nodes[at] = node
	}
	return t, nil
}

// next returns the node that a byte leads to from node at, or 0 when no piece goes on so. The root
// is node 0.
func (t *pieceTrie) next(at int32, c byte) int32 {
	node := &t.nodes[at]
	i := bytes.IndexByte(t.labels[node.first:node.first+node.count], c)
	if i < 0 {
		return 0
	}
	return node.first + int32(i)
}
