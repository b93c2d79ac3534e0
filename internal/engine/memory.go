package engine

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// availableMemory is MemAvailable of /proc/meminfo in bytes, limited by the process's control group when that
// has a limit; 0 when neither can be read.
func availableMemory() int64 {
	free := meminfo("MemAvailable:")
	if raw, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil && (free == 0 || n < free) {
			free = n
		}
	}
	return free
}

func meminfo(key string) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), key); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}

// looksLikeTemplate tells a template given as text from a path that does not exist.
func looksLikeTemplate(s string) bool { return strings.Contains(s, "{{") || strings.Contains(s, "{%") }
