package pool

// pause executes n (at least 1) PAUSE instructions: the core gives its resources to its sibling and
// leaves the spin loop without a memory-order mispredict.
//
//go:noescape
func pause(n uint32)
