package offheap

// Arena maps memory with huge pages, also where it is too small for one: such parts, but the first
// few, lie side by side in common mappings, so that reading one after the other crosses few pages.
// A mapping goes back to the system with the last of its parts. The zero Arena is ready; it and the
// memory that it gives are one goroutine's at a time.
type Arena struct {
	open  *chunk
	apart int // bytes of mappings of their own
}

// chunk is a mapping that parts are given of, in order.
type chunk struct {
	memory      Memory
	used, parts int
}

const (
	chunkBytes = hugeFrom
	// apartBytes are given at first, as mappings of their own: what needs no more, such as a small
	// model, takes no more.
	apartBytes = 8 << 20
	// partAtMost is the largest memory that is a part: less is left behind the last one of a chunk.
	partAtMost = 1 << 20
	// partAlign is a pair of cache lines, which processors fetch together.
	partAlign = 128
)

// Map is the function Map with HugePages, but that memory of 1 MiB or less begins at any multiple
// of 128 bytes.
func (a *Arena) Map(size int) (Memory, error) {
	if size > partAtMost {
		return Map(size, HugePages)
	}
	if a.apart < apartBytes {
		a.apart += size
		return Map(size, HugePages)
	}
	c := a.open
	if c == nil || c.parts == 0 || c.used+size > chunkBytes {
		memory, err := anonymous(chunkBytes, HugePages)
		if err != nil {
			return Memory{}, err
		}
		c = &chunk{memory: memory}
		a.open = c
	}
	m := Memory{data: c.memory.data[c.used : c.used+size : c.used+size], arena: c}
	c.used += (size + partAlign - 1) &^ (partAlign - 1)
	c.parts++
	inUse.Add(int64(size))
	return m, nil
}

// leave gives a part back, and returns the mapping if that was the last one.
func (c *chunk) leave() []byte {
	if c.parts--; c.parts > 0 {
		return nil
	}
	return c.memory.mapping
}
