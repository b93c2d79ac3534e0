package main

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// release is set by the Makefile: the tag, v1.2.3, else the commit and its date.
var release string

// version is the release, or the commit that the program was built from.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return builtFrom(info)
}

// pseudo ends the version that Go makes up for a commit without a tag.
var pseudo = regexp.MustCompile(`[-.]\d{14}-[0-9a-f]{12}(\+|$)`)

// builtFrom is the version that Go noted in the program: the tag, else the commit and its date.
func builtFrom(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" && !pseudo.MatchString(v) {
		return v
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	commit, date := set["vcs.revision"], set["vcs.time"]
	if commit == "" {
		return "unknown"
	}
	text := "commit " + commit[:min(len(commit), 12)]
	if len(date) >= len("2006-01-02") {
		text += " of " + date[:len("2006-01-02")]
	}
	if set["vcs.modified"] == "true" {
		text += ", changed"
	}
	return text
}

func versionText() string {
	return fmt.Sprintf("eagleray %s (%s %s/%s)", version(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Println(versionText())
			return err
		},
	}
}
