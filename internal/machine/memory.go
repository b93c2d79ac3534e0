package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// AvailableMemory is how many bytes this process can still use without swapping: MemAvailable of
// the host, or less when its control group or one above it has a limit with less left. It is false
// when nothing of that is known.
func AvailableMemory() (bytes int64, ok bool) { return availableMemory(os.DirFS("/")) }

func availableMemory(root fs.FS) (bytes int64, ok bool) {
	if kb, has := keyed(root, "proc/meminfo", "MemAvailable:"); has {
		bytes, ok = kb<<10, true
	}
	for _, g := range controlGroups(root, "memory") {
		if left, has := groupMemory(root, g); has && (!ok || left < bytes) {
			bytes, ok = left, true
		}
	}
	return bytes, ok
}

// groupMemory is what is left of a control group's limit; false when it has none. Files that
// nothing has read lately are counted as use by the kernel, but give way to any other need.
func groupMemory(root fs.FS, group string) (left int64, ok bool) {
	for _, names := range [][4]string{
		{"memory.max", "memory.current", "memory.stat", "inactive_file"},
		// version 1
		{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"},
	} {
		limit, hasLimit := number(root, path.Join(group, names[0]))
		used, hasUsed := number(root, path.Join(group, names[1]))
		if !hasLimit || !hasUsed {
			continue // "max" is no number
		}
		cached, _ := keyed(root, path.Join(group, names[2]), names[3])
		return max(limit-used+cached, 0), true
	}
	return 0, false
}

// number reads a file that holds one number.
func number(root fs.FS, name string) (int64, bool) {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return n, err == nil
}

// keyed reads the number after a key at the beginning of a line.
func keyed(root fs.FS, name, key string) (int64, bool) {
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(raw)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == key {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
