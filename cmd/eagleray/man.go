package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newMan writes the manual, for packages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual's pages into a folder",
		Hidden: true,
		Args:   cli.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			for name, text := range manual(c.Root()) {
				path := filepath.Join(args[0], name)
				if err := os.WriteFile(path, text, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// manual is a page in man(7) for each command that help shows, by file name.
func manual(root *cobra.Command) map[string][]byte {
	root.InitDefaultHelpCmd()
	pages := map[string][]byte{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		pages[pageName(c)+".1"] = page(c)
		for _, sub := range visible(c) {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func visible(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands()), func(sub *cobra.Command) bool {
		return !sub.IsAvailableCommand()
	})
}

func page(c *cobra.Command) []byte {
	c.InitDefaultHelpFlag()
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q %q\n", strings.ToUpper(pageName(c)),
		"eagleray "+version(), "Eagle Ray")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	if c.Long == "" {
		b.WriteString(roff(c.Short) + ".\n")
	}
	description(&b, c.Long)
	if subs := visible(c); len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range subs {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s: see\n.BR %s (1).\n", roff(sub.Name()),
				roff(sub.Short), roff(pageName(sub)))
		}
	}
	b.WriteString(".SH OPTIONS\n")
	c.Flags().VisitAll(func(f *pflag.Flag) { flagEntry(&b, f) })
	if !c.HasParent() {
		b.WriteString(".SH EXIT STATUS\n")
		for _, e := range []struct {
			code    int
			meaning string
		}{
			{0, "done, or ended by a signal with every request answered"},
			{exitError, "an error, which the last line names"},
			{exitUsage, "a mistake in the command line, a file of flags or a variable"},
			{exitCut, "a server ended requests before they were done"},
			{exitInterrupted, "interrupted"},
		} {
			fmt.Fprintf(&b, ".TP\n.B %d\n%s\n", e.code, roff(e.meaning))
		}
	} else {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", roff(pageName(c.Parent())))
	}
	return b.Bytes()
}

// description sets a help text: what is indented there is shown as it stands.
func description(b *bytes.Buffer, text string) {
	example := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch indented := strings.HasPrefix(line, "  "); {
		case line == "" && !example:
			b.WriteString(".PP\n")
			continue
		case indented && !example:
			b.WriteString(".EX\n")
			example = true
		case !indented && example:
			b.WriteString(".EE\n.PP\n")
			example = false
			if line == "" {
				continue
			}
		}
		b.WriteString(roff(line) + "\n")
	}
	if example {
		b.WriteString(".EE\n")
	}
}

// noDefaults are what help does not show as a default.
var noDefaults = []string{"", "0", "0s", "false", "[]"}

func flagEntry(b *bytes.Buffer, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	b.WriteString(".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
	}
	kind, usage := pflag.UnquoteUsage(f)
	kind = cmp.Or(string(config.PathOf(f)), kind)
	// A list has no spaces at which a line could end: it may after each comma.
	fmt.Fprintf(b, "\\fB\\-\\-%s\\fR \\fI%s\\fR\n%s%s\n", roff(f.Name), roff(kind), roff(usage),
		strings.ReplaceAll(roff(defaultOf(f)), ",", `,\:`))
}

// defaultOf is a flag's default behind its text, unless that says it.
func defaultOf(x *pflag.Flag) string {
	if slices.Contains(noDefaults, x.DefValue) || strings.Contains(x.Usage, "(default") {
		return ""
	}
	return " (default " + x.DefValue + ")"
}

// roff makes a line of text safe: a hyphen stays one that can be copied, and a line is no request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
