package machine

import (
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
)

// Program is what the linker has named this program by: a hash of all that it was built of, in
// hexadecimal.
func Program() (string, error) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("own binary: %w", err)
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", errors.New("own binary: it has no build ID")
	}
	id, err := note.Data()
	return hex.EncodeToString(id), err
}
