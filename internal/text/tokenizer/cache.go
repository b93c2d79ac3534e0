package tokenizer

import (
	"hash/maphash"
	"sync/atomic"
)

// A remembered piece has at most so many bytes and tokens: it fills one cache line.
const (
	maxCachedPiece = 30
	maxCachedIDs   = 8
)

// pieceCache remembers the tokens of pieces met before. A piece has one place, which holds two; a
// newcomer drives out the older one. So the cache is bounded and needs no lock. The seeded hash
// keeps clients from aiming at places.
type pieceCache struct {
	seed   maphash.Seed
	places []cachePlace
}

type cachePlace [2]atomic.Pointer[cachedPiece]

type cachedPiece struct {
	size, count uint8
	text        [maxCachedPiece]byte
	ids         [maxCachedIDs]int32
}

// newPieceCache sizes the cache for a vocabulary of n tokens.
func newPieceCache(n int) *pieceCache {
	size := 1 << 9
	for size < n/4 && size < 1<<15 {
		size <<= 1
	}
	return &pieceCache{seed: maphash.MakeSeed(), places: make([]cachePlace, size)}
}

func (c *pieceCache) place(piece string) *cachePlace {
	return &c.places[maphash.String(c.seed, piece)&uint64(len(c.places)-1)]
}

// find returns what is remembered of a piece, or nil.
func (p *cachePlace) find(piece string) *cachedPiece {
	for i := range p {
		if c := p[i].Load(); c != nil && string(c.text[:c.size]) == piece {
			return c
		}
	}
	return nil
}

// store remembers the tokens of a piece of at most maxCachedPiece bytes, unless they are too many.
func (p *cachePlace) store(piece string, ids []int32) {
	if len(ids) > maxCachedIDs {
		return
	}
	c := &cachedPiece{size: uint8(len(piece)), count: uint8(len(ids))}
	copy(c.text[:], piece)
	copy(c.ids[:], ids)
	p[1].Store(p[0].Load())
	p[0].Store(c)
}
