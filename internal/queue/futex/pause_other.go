//go:build !amd64 && !arm64

package futex

// Pause does nothing on this architecture.
func Pause(uint32) {}
