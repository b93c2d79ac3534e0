package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// helpTopic is what --help=TOPIC asks for, as in vLLM.
func helpTopic(args []string) (topic string, asked bool) {
	for _, a := range args {
		if a == "--" {
			break
		}
		topic, found := strings.CutPrefix(a, "--help=")
		if _, err := strconv.ParseBool(topic); found && err != nil {
			return topic, true
		}
	}
	return "", false
}

// explain prints what --help=TOPIC asks for: the groups of flags (listgroup), the flags of one, one
// flag with its other names, those with a word in their name, or all, also those that are only
// known.
func explain(c *cobra.Command, topic string, to io.Writer) error {
	f := c.Flags()
	if strings.EqualFold(topic, "listgroup") {
		for _, name := range config.Groups(f) {
			fmt.Fprintf(to, "%-16s %d flags (--help=%s)\n", name, len(config.Find(f, name)), name)
		}
		return nil
	}
	found := config.Find(f, topic)
	if len(found) == 0 {
		hint := "see --help=listgroup and --help=all"
		if near := config.Similar(f, topic); near != "" {
			hint = "did you mean --help=" + near + "?"
		}
		return cli.UsageError("--help=%s: no flag or group of %s is called so: %s", topic,
			c.CommandPath(), hint)
	}
	fmt.Fprint(to, usages(found))
	if len(found) == 1 {
		fmt.Fprintf(to, "\nalso: %s\n", strings.Join(config.Names(found[0]), ", "))
	}
	return nil
}

// usages are the lines of flags, as in the help of a command.
func usages(flags []*pflag.Flag) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.SortFlags = false
	for _, x := range flags {
		shown := *x
		shown.Hidden = false
		if x.Hidden {
			shown.Usage = "known to vLLM: " + x.Usage
		}
		set.AddFlag(&shown)
	}
	return set.FlagUsages()
}
