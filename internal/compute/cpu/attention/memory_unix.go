//go:build unix

package attention

import "golang.org/x/sys/unix"

// mapMemory returns size zero bytes that the system backs page by page when they are first written.
func mapMemory(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
