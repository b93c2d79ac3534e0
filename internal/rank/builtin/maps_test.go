package builtin

import (
	"bytes"
	"fmt"
	"unsafe"
)

// permissions finds what may be done with the memory of s in the content of /proc/self/maps, such
// as "r--p".
func permissions(maps []byte, s string) (string, bool) {
	at := uintptr(unsafe.Pointer(unsafe.StringData(s)))
	for line := range bytes.Lines(maps) {
		var begin, end uintptr
		var perms string
		if n, _ := fmt.Sscanf(string(line), "%x-%x %s", &begin, &end, &perms); n == 3 &&
			begin <= at && at < end {
			return perms, true
		}
	}
	return "", false
}
