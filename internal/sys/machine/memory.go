package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Memory is what this process and those beside it may use: the host's memory, and the limits of its
// control group and of all above it. There are none when nothing of that can be read.
func Memory() memory.Bounds { return bounds(os.DirFS("/")) }

func bounds(root fs.FS) (all memory.Bounds) {
	if left, has := keyed(root, "proc/meminfo", "MemAvailable:"); has {
		total, _ := keyed(root, "proc/meminfo", "MemTotal:")
		all = append(all, memory.Bound{From: "the host's memory", Limit: max(total, left) << 10,
			Left: left << 10})
	}
	for _, g := range controlGroups(root, "memory") {
		if b, has := groupMemory(root, g); has {
			all = append(all, b)
		}
	}
	return all
}

// groupFiles are where a version of control groups has a group's memory: limits, of which the least
// counts, what is in use, and what of that is files.
type groupFiles struct {
	limits []string
	used   string
	files  []string
}

var groupVersions = []groupFiles{
	// Beyond memory.high the kernel takes memory away from running processes, and slows them down
	// until nothing goes on: that is no room.
	{[]string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file",
		"active_file"}},
	{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes",
		[]string{"total_inactive_file", "total_active_file"}},
}

// unlimited is from where on a number is no limit: version 1 has no word for it.
const unlimited = 1 << 60

// groupMemory is the limit of a control group; false when it has none. The kernel counts files that
// it keeps as use, but they give way to any other need: a model that was just copied, or read to be
// compared, takes nothing.
func groupMemory(root fs.FS, group string) (memory.Bound, bool) {
	for _, v := range groupVersions {
		used, has := number(root, path.Join(group, v.used))
		if !has {
			continue
		}
		b := memory.Bound{Limit: unlimited}
		for _, name := range v.limits {
			file := path.Join(group, name)
			// "max" is no number
			if limit, has := number(root, file); has && limit < b.Limit {
				b.Limit, b.From = limit, "/"+file
			}
		}
		if b.From == "" {
			continue
		}
		for _, key := range v.files {
			cached, _ := keyed(root, path.Join(group, "memory.stat"), key)
			used -= cached
		}
		b.Left = max(b.Limit-max(used, 0), 0)
		return b, true
	}
	return memory.Bound{}, false
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
