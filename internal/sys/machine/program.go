package machine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// noteOwner ends the header of the note with the linker's name of a program: its type, 4, and whose
// note it is.
var noteOwner = []byte("\x04\x00\x00\x00Go\x00\x00")

// Program is what the linker has named this program by: a hash of all that it was built of, in
// hexadecimal. Package debug/elf, which would find it too, would be 140 kB of the program.
func Program() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("own binary: %w", err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 1<<16)) // notes come first
	if err != nil {
		return "", fmt.Errorf("own binary: %w", err)
	}
	before, id, found := bytes.Cut(head, noteOwner)
	if !found || len(before) < 4 {
		return "", errors.New("own binary: it has no build ID")
	}
	size := binary.LittleEndian.Uint32(before[len(before)-4:])
	return hex.EncodeToString(id[:min(int(size), len(id))]), nil
}
