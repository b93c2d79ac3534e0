package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// CacheLayers is what the layers from one to before another keep of each position on a rank of a
// group of tpSize tensor parallel ranks; of the whole model with a tpSize of 1. It is all that is
// known outside of models and devices of what a cache is made of. A layer without attention may
// keep nothing, one with two kinds of it keeps both.
func CacheLayers(c *Config, from, to, tpSize int) []compute.CacheLayer {
	of := plainCache
	if fam, err := c.family(); err == nil && fam.cache != nil {
		of = fam.cache
	}
	list := make([]compute.CacheLayer, 0, to-from)
	for i := from; i < to; i++ {
		for _, l := range of(c, i) {
			l.Heads = layers.LocalKVHeads(l.Heads, tpSize)
			list = append(list, l)
		}
	}
	return list
}

// GroupedLayers is CacheLayers with the groups that the layers are in, of the whole model's.
func GroupedLayers(c *Config, from, to, tpSize int,
	groups grouping.Groups) []compute.CacheLayer {
	all, kinds := CacheLayers(c, 0, to, tpSize), [2]int{}
	for i := range all {
		windowed, n := all[i].Window > 0, &kinds[0]
		if windowed {
			n = &kinds[1]
		}
		all[i].Group = groups.Group(windowed, *n)
		*n++
	}
	return all[len(CacheLayers(c, 0, from, tpSize)):]
}

// Cache is what each layer of the whole model keeps of each position.
func (c *Config) Cache() []compute.CacheLayer { return CacheLayers(c, 0, c.Layers, 1) }

// plainCache is what a layer keeps in most families: keys and values of its heads, as far as its
// window reaches.
func plainCache(c *Config, layer int) []compute.CacheLayer {
	return []compute.CacheLayer{{Heads: c.KVHeads, Dim: c.HeadDim, Window: c.window(layer)}}
}

// cached is the place of a layer in the stage's cache: of what it keeps first.
func (s *stage) cached(layer int) int { return len(CacheLayers(s.cfg, s.From, layer, 1)) }
