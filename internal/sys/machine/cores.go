// Package machine says how much of its host this process may use.
package machine

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Cores is how many threads of this process are to compute at a time: the physical cores of its
// affinity mask, or fewer when its control group or one above it has a smaller quota of CPU time. A
// second hardware thread of a core is not counted: it adds nothing to what the core's vector units
// and its share of the memory's bandwidth do. It is at least 1.
//
// GOMAXPROCS does not limit it: that bounds goroutines, of which a few more than these may run.
func Cores() int {
	t := ReadTopology()
	return t.limit(len(t.cores()))
}

// Processors is how many threads of this process can run at a time: as Cores, with every hardware
// thread of a core.
func Processors() int {
	t := ReadTopology()
	return t.limit(len(t.Processors))
}

// cpuQuota is the smallest quota of this process' control groups, in processors; false when none
// has one.
func cpuQuota(root fs.FS) (quota float64, ok bool) {
	for _, g := range controlGroups(root, "cpu") {
		if q, has := groupQuota(root, g); has && (!ok || q < quota) {
			quota, ok = q, true
		}
	}
	return quota, ok
}

// groupQuota reads cpu.max of version 2 ("200000 100000" or "max 100000"), or the two files of
// version 1, where -1 is no quota.
func groupQuota(root fs.FS, group string) (float64, bool) {
	time, period, ok := "", "", false
	if raw, err := fs.ReadFile(root, path.Join(group, "cpu.max")); err == nil {
		time, period, ok = strings.Cut(strings.TrimSpace(string(raw)), " ")
	} else {
		rawTime, errTime := fs.ReadFile(root, path.Join(group, "cpu.cfs_quota_us"))
		rawPeriod, errPeriod := fs.ReadFile(root, path.Join(group, "cpu.cfs_period_us"))
		ok = errors.Join(errTime, errPeriod) == nil
		time, period = strings.TrimSpace(string(rawTime)), strings.TrimSpace(string(rawPeriod))
	}
	if !ok {
		return 0, false
	}
	t, err := strconv.ParseFloat(time, 64)
	p, errPeriod := strconv.ParseFloat(period, 64)
	if err != nil || errPeriod != nil || t <= 0 || p <= 0 {
		return 0, false
	}
	return t / p, true
}

// controlGroups are the folders, relative to root, of this process' control group and of those
// above it, for one controller. Version 2 has one tree for all, version 1 one per controller (see
// cgroups(7)). In a container the tree often begins at the container's own group: the path of
// /proc/self/cgroup is then not there, and the mount itself is the group.
func controlGroups(root fs.FS, controller string) []string {
	raw, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var groups []string
	for line := range strings.Lines(string(raw)) {
		// hierarchy:controllers:path; version 2 has hierarchy 0 and no controllers.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount := "sys/fs/cgroup"
		if fields[0] != "0" || fields[1] != "" {
			if !contains(fields[1], controller) {
				continue
			}
			mount = path.Join(mount, fields[1])
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			groups = append(groups, path.Join(mount, at))
			if at == "/" {
				break
			}
		}
	}
	return groups
}

func contains(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
