//go:build amd64 || arm64

package spin

// Pause hints to the processor n times that this is a busy wait: the core gives its resources to
// its other thread, saves power, and leaves the loop without a memory-order mispredict. n is at
// least 1.
//
//go:noescape
func Pause(n uint32)
