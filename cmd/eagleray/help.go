package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// section is a part of a command's short help: flags with a line each that fits beside them.
type section struct {
	title string
	lines []brief
}

// brief is a flag and what it is for.
type brief struct{ flag, text string }

// common are the flags of an engine and a server that most people need.
var common = []section{
	{"Model", []brief{
		{"model", "folder, GGUF file or Hub repo"},
		{"served-model-name", "what clients call it"},
		{"max-model-len", "most tokens of a request, such as 4k"},
		{"dtype", "bfloat16, float16, float32 (default: auto)"},
		{"quantization", "int8 or int4 as weights are loaded"},
	}},
	{"Layout", []brief{
		{"tensor-parallel-size", "ranks of a layer (-tp)"},
		{"pipeline-parallel-size", "stages of layers (-pp)"},
		{"data-parallel-size", "copies of the model (-dp)"},
		{"distributed-executor-backend", "uni, mp (processes) or ray"},
		{"ray-address", "Ray cluster, such as 10.0.0.1:6379"},
		{"cpu-threads", "cores of each rank"},
	}},
	{"Memory and load", []brief{
		{"kv-cache-memory-bytes", "KV cache of each rank, such as 2G"},
		{"gpu-memory-utilization", "part of the memory, such as 0.5"},
		{"max-num-seqs", "requests at once"},
	}},
	{"Server", []brief{
		{"host", "where to listen (default 127.0.0.1)"},
		{"port", "port to listen on"},
		{"api-key", "key that clients must send"},
		{"log-format", "text, logfmt, json (default: auto)"},
	}},
}

// briefs are shorter texts of flags that commands have for themselves.
var briefs = map[string]string{
	"check":  "find mistakes; start nothing",
	"config": "YAML file of flags",
}

// shortHelp has commands with the flags of an engine show their own and the common ones: the rest
// is behind --help=TOPIC.
func shortHelp(c *cobra.Command) {
	if len(config.Groups(c.Flags())) > 0 {
		c.SetUsageFunc(func(c *cobra.Command) error {
			_, err := io.WriteString(c.OutOrStderr(), shortUsage(c, width()))
			return err
		})
	}
	for _, sub := range c.Commands() {
		shortHelp(sub)
	}
}

func shortUsage(c *cobra.Command, width int) string {
	f := c.Flags()
	titles := []string{"Flags"}
	own := config.Own(f)
	for i, x := range own {
		if text := briefs[x.Name]; text != "" {
			own[i] = withText(x, text)
		}
	}
	parts := [][]*pflag.Flag{own}
	for _, s := range common {
		var flags []*pflag.Flag
		for _, b := range s.lines {
			if x := f.Lookup(b.flag); x != nil && config.GroupOf(x) != "" {
				flags = append(flags, withText(x, b.text))
			}
		}
		if len(flags) > 0 {
			titles, parts = append(titles, s.title), append(parts, flags)
		}
	}
	return fmt.Sprintf("Usage:\n  %s\n%s\n"+
		"%[3]s --help=all shows all %[4]d flags, and what becomes of vLLM's others;\n"+
		"--help=listgroup their groups, --help=GROUP those of one, --help=WORD those with it in\n"+
		"their name. A flag can also be a line of --config FILE, or a variable: EAGLERAY_DTYPE is "+
		"--dtype.\n",
		c.UseLine(), listing(titles, parts, width), c.CommandPath(), len(config.Shown(f)))
}

// withText is a flag with another text.
func withText(x *pflag.Flag, text string) *pflag.Flag {
	shown := *x
	shown.Usage = text
	return &shown
}

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
// flag with its other names, those with a word in their name, all, also those that are only known,
// or all in a pager (page).
func explain(c *cobra.Command, topic string, to io.Writer) error {
	f := c.Flags()
	switch strings.ToLower(topic) {
	case "listgroup":
		for _, name := range config.Groups(f) {
			fmt.Fprintf(to, "%-16s %d flags (--help=%s)\n", name, len(config.Find(f, name)), name)
		}
		return nil
	case "all":
		fmt.Fprint(to, everything(f))
		return nil
	case "page":
		return paged(everything(f), to)
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
	fmt.Fprint(to, listing([]string{""}, [][]*pflag.Flag{found}, width()))
	if len(found) == 1 {
		if words := config.ChoicesOf(found[0]); len(words) > 0 {
			fmt.Fprintf(to, "\nvalues: %s\n", strings.Join(words, ", "))
		}
		fmt.Fprintf(to, "\nalso: %s\n", strings.Join(config.Names(found[0]), ", "))
	}
	return nil
}

// everything is all flags by what they are about, and then those that do nothing.
func everything(f *pflag.FlagSet) string {
	titles := []string{"Flags"}
	parts := [][]*pflag.Flag{config.Own(f)}
	for _, name := range config.Groups(f) {
		titles, parts = append(titles, name), append(parts, config.Find(f, name))
	}
	known := slices.DeleteFunc(config.Find(f, "all"), func(x *pflag.Flag) bool { return !x.Hidden })
	titles, parts = append(titles, "Without effect, or refused"), append(parts, known)
	return listing(titles, parts, width())
}

// paged shows a text in the pager that the user has, on a terminal; else it is printed.
func paged(text string, to io.Writer) error {
	pager, err := exec.LookPath(cmp.Or(os.Getenv("PAGER"), "less"))
	if err != nil || to != os.Stdout || !isTerminal(os.Stdout) {
		_, err := io.WriteString(to, text)
		return err
	}
	c := exec.Command(pager)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(text), os.Stdout, os.Stderr
	return c.Run()
}

// width is the number of columns of the terminal, 0 for no limit.
func width() int {
	columns, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// leastText is how many columns the text beside a flag has at least.
const leastText = 24

// listing is flags in parts with titles, their texts in one column, cut into lines of at most width
// columns. A title of "" is left out.
func listing(titles []string, parts [][]*pflag.Flag, width int) string {
	column := 0
	for _, flags := range parts {
		for _, x := range flags {
			column = max(column, len(nameOf(x))+3)
		}
	}
	var b bytes.Buffer
	for i, flags := range parts {
		if len(flags) == 0 {
			continue
		}
		if titles[i] != "" {
			fmt.Fprintf(&b, "\n%s:\n", titles[i])
		}
		for _, x := range flags {
			lines := wrapped(textOf(x), max(width-column-1, leastText))
			if width == 0 {
				lines = []string{textOf(x)}
			}
			fmt.Fprintf(&b, "%-*s%s\n", column, nameOf(x), lines[0])
			for _, line := range lines[1:] {
				fmt.Fprintf(&b, "%*s%s\n", column, "", line)
			}
		}
	}
	return b.String()
}

// nameOf is a flag with its letter and what its value is.
func nameOf(x *pflag.Flag) string {
	name := "  --" + x.Name
	if x.Shorthand != "" {
		name = "  -" + x.Shorthand + ", --" + x.Name
	}
	kind, _ := pflag.UnquoteUsage(x)
	switch kind = cmp.Or(string(config.PathOf(x)), strings.TrimSuffix(kind, "Array")); {
	case x.NoOptDefVal != "" && x.Value.Type() != "bool":
		return name + "[=" + kind + "]"
	case kind != "":
		return name + " " + kind
	}
	return name
}

// textOf is what a flag is for, and its default.
func textOf(x *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(x)
	if x.Hidden {
		text = "known to vLLM: " + text
	}
	return text + defaultOf(x)
}

// wrapped cuts a text into lines of at most so many characters where it has spaces.
func wrapped(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
