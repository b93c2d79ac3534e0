//go:build amd64 || arm64

package spin

// Pause tells the processor n times that this is a busy wait, which leaves the core to its other thread and
// saves power. n is at least 1.
//
//go:noescape
func Pause(n uint32)
