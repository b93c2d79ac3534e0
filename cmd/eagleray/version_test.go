package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestBuiltFrom(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision",
		Value: "e6ff6e3aa11bb22cc33dd44ee55ff66aa77bb88c"},
		{Key: "vcs.time", Value: "2026-11-22T10:39:20Z"}, {Key: "vcs.modified", Value: "false"}}
	changed := append(commit[:2:2], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for _, tt := range []struct {
		version  string
		settings []debug.BuildSetting
		want     string
	}{
		{"v1.2.3", commit, "v1.2.3"},
		{"v1.2.3-rc.1", commit, "v1.2.3-rc.1"},
		{"v0.0.0-20261122103920-e6ff6e3aa11b", commit, "commit e6ff6e3aa11b of 2026-11-22"},
		{"v1.2.4-0.20261122103920-e6ff6e3aa11b+dirty", changed,
			"commit e6ff6e3aa11b of 2026-11-22, changed"},
		{"(devel)", commit, "commit e6ff6e3aa11b of 2026-11-22"},
		{"(devel)", nil, "unknown"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: tt.version}, Settings: tt.settings}
		if got := builtFrom(info); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.version, got, tt.want)
		}
	}
}

// Whatever is typed to learn the version tells it.
func TestVersion(t *testing.T) {
	t.Parallel()
	_, want, _ := execute(t, "", "version")
	for _, flag := range []string{"--version", "-v"} {
		if code, got, stderr := execute(t, "", flag); code != 0 || got != want ||
			!strings.HasPrefix(got, "eagleray ") {
			t.Errorf("%s: exit code %d, printed %q, errors %q, want %q", flag, code, got, stderr,
				want)
		}
	}
}
