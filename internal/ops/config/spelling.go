package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// short are vLLM's short flags that the flag library cannot know: of more than one letter, or of
// flags that are only known.
var short = map[string]string{"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size",
	"-dp":  "--data-parallel-size",
	"-pcp": "--prefill-context-parallel-size", "-dcp": "--decode-context-parallel-size",
	"-ep": "--enable-expert-parallel",
	"-q":  "--quantization", "-n": "--nnodes", "-r": "--node-rank",
	"-O": "--optimization-level", "-cc": "--compilation-config", "-ac": "--attention-config",
	"-dc": "--diffusion-config", "-sc": "--speculative-config",
	"-asc": "--api-server-count", "-dpl": "--data-parallel-size-local",
	"-dpn": "--data-parallel-rank", "-dpr": "--data-parallel-start-rank",
	"-dpa": "--master-addr", "-dpp": "--master-port",
	"-dpb": "--distributed-executor-backend", "-dph": "--data-parallel-hybrid-lb",
	"-dpe": "--data-parallel-external-lb", "-dpm": "--data-parallel-multi-port-external-lb"}

// level is a short flag with its value, as in -O3.
var level = regexp.MustCompile(`^-O([0-9]+)$`)

// severalWords is the annotation of flags that take all words up to the next flag.
const severalWords = "several words"

// Words lets flags take all words up to the next flag, as vLLM's lists do: --name a b is
// --name a --name b.
func Words(f *pflag.FlagSet, names ...string) {
	for _, name := range names {
		x := f.Lookup(name)
		if x.Annotations == nil {
			x.Annotations = map[string][]string{}
		}
		x.Annotations[severalWords] = []string{}
	}
}

// Expand rewrites vLLM's spellings as the flag library knows them: short flags of more than one
// letter, flags of f with several words, opposites of switches, and members of flags whose value is
// an object. What follows "--" is left alone.
func Expand(f *pflag.FlagSet, args []string) []string {
	out := make([]string, 0, len(args))
	var given givenMembers
	list := ""
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return append(given.appendTo(out), args[i:]...)
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			if list != "" {
				a = list + "=" + a
			}
			out = append(out, a)
			continue
		}
		name, value, has := strings.Cut(level.ReplaceAllString(a, "-O=$1"), "=")
		list = ""
		next := i + 1
		if of, path, member := strings.Cut(name, "."); member && (has || next < len(args)) {
			if x := lookupLong(f, longName(f, of)); x != nil {
				if !has {
					value, i = args[next], next
				}
				given.of("--"+x.Name).put(path, value)
				continue
			}
		}
		name = longName(f, name)
		if x := opposite(f, name); x != nil {
			name, value, has = "--"+x.Name, contrary(cmp.Or(value, x.NoOptDefVal)), true
		}
		if !has && takesWords(f, name) && next < len(args) && !strings.HasPrefix(args[next], "-") {
			list = name
			continue
		}
		if has {
			name += "=" + value
		}
		out = append(out, name)
	}
	return given.appendTo(out)
}

// longName is what a short flag stands for; other names, and those of f's own, are returned as they
// are.
func longName(f *pflag.FlagSet, name string) string {
	if len(name) == 2 && f.ShorthandLookup(name[1:]) != nil {
		return name
	}
	return cmp.Or(short[name], name)
}

// lookupLong is the flag that is written --name, nil for none.
func lookupLong(f *pflag.FlagSet, name string) *pflag.Flag {
	return f.Lookup(strings.TrimPrefix(name, "--"))
}

func takesWords(f *pflag.FlagSet, name string) bool {
	x := lookupLong(f, name)
	return x != nil && x.Annotations[severalWords] != nil
}

// FlagError says shorter what the flag library says of a value it refused, and which flag of f may
// be meant by an unknown one; other errors are returned as they are.
func FlagError(f *pflag.FlagSet, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		name := cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName())
		if near := Similar(f, name); near != "" {
			return fmt.Errorf("%w: did you mean --%s?", err, near)
		}
		return err
	}
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	flag, cause := bad.GetFlag(), bad.Unwrap()
	// The value of a switch that is refused is "true", which its name stands for.
	given := flag.Value.Type() != "bool"
	if number := (*strconv.NumError)(nil); errors.As(cause, &number) {
		cause, given = number.Err, true
	}
	if given {
		return fmt.Errorf("--%s %q: %w", flag.Name, bad.GetValue(), cause)
	}
	return fmt.Errorf("--%s: %w", flag.Name, cause)
}

// Similar is the flag of f whose name is most like the one given, "" when none is near: it differs
// by at most one letter in four, or begins like it.
func Similar(f *pflag.FlagSet, name string) string {
	name = strings.ToLower(strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-"))
	if len(name) < 3 {
		return ""
	}
	var names []string
	f.VisitAll(func(x *pflag.Flag) {
		names = append(names, x.Name)
		if isSwitch(x) {
			names = append(names, "no-"+x.Name)
		}
	})
	return closest(name, names)
}

// closest is the name that one may have been meant for, "" for none.
func closest(name string, names []string) string {
	best, least := "", len(name)/4+1
	for _, x := range names {
		d := distance(name, x)
		if d >= least && d > 0 && strings.HasPrefix(x, name) {
			d = least - 1 // a name that was cut short
		}
		if d < least {
			best, least = x, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
