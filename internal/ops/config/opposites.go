package config

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// opposites are the names of a switch's opposite, "" for none: no-x of x, disable-x of enable-x. A
// name is one of theirs in turn.
func opposites(name string) [2]string {
	names := [2]string{"no-" + name}
	if x, no := strings.CutPrefix(name, "no-"); no {
		names[0] = x
	} else if x, on := strings.CutPrefix(name, "enable-"); on {
		names[1] = "disable-" + x
	} else if x, off := strings.CutPrefix(name, "disable-"); off {
		names[1] = "enable-" + x
	}
	return names
}

// opposite is the switch of f that a name is the opposite of, with or without its dashes; nil for
// none, and for the name of a flag.
func opposite(f *pflag.FlagSet, name string) *pflag.Flag {
	if lookupLong(f, name) != nil {
		return nil
	}
	name = strings.TrimPrefix(name, "--")
	for _, other := range opposites(string(Normalize(f, name))) {
		if x := f.Lookup(other); x != nil && isSwitch(x) {
			return x
		}
	}
	return nil
}

func isSwitch(x *pflag.Flag) bool { return x.Value.Type() == "bool" && x.NoOptDefVal != "" }

// contrary is what the opposite of a switch says with a value; of no value it is the same.
func contrary(value string) string {
	if v, err := strconv.ParseBool(value); err == nil {
		return strconv.FormatBool(!v)
	}
	return value
}
