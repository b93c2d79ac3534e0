package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Env is the prefix of environment variables that stand for flags: EAGLERAY_MAX_MODEL_LEN is
// --max-model-len.
const Env = "EAGLERAY_"

// aliases is the annotation of flags that further environment variables stand for.
const aliases = "environment"

// Alias lets an environment variable stand for a flag, after the one of our own name.
func Alias(f *pflag.FlagSet, flag, variable string) {
	x := f.Lookup(flag)
	if x.Annotations == nil {
		x.Annotations = map[string][]string{}
	}
	x.Annotations[aliases] = append(x.Annotations[aliases], variable)
}

// Fill sets the flags that were not given on the command line: from the values of a configuration
// file (by flag name), and those the file does not have from the environment. where names the file
// in errors. An address of a Ray cluster in the file chooses Ray to start the workers; one in the
// environment may be meant for other programs, and does not.
func Fill(f *pflag.FlagSet, where string, file map[string][]string) error {
	for _, name := range slices.Sorted(maps.Keys(file)) {
		flag := f.Lookup(name)
		if flag == nil || flag.Name == "config" || flag.Name == "help" {
			return usage("%s: %q is not a flag of this command%s", where, name, hint(f, name))
		}
		if given(f, flag) {
			continue
		}
		for _, v := range file[name] {
			if err := f.Set(flag.Name, v); err != nil {
				return usage("%s: %w", where, FlagError(f, err))
			}
		}
	}
	if err := chooseRay(f); err != nil {
		return err
	}
	var failure error
	f.VisitAll(func(flag *pflag.Flag) {
		if given(f, flag) || failure != nil || flag.Name == "help" || flag.Name == "config" {
			return
		}
		name, value := lookup(flag)
		if name == "" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			failure = usage("environment variable %s: %w", name, FlagError(f, err))
		}
	})
	return failure
}

// given reports whether a flag was set, or its opposite (--no-x of --x): both are one setting.
func given(f *pflag.FlagSet, flag *pflag.Flag) bool {
	name, negated := strings.CutPrefix(flag.Name, "no-")
	if !negated {
		name = "no-" + name
	}
	opposite := f.Lookup(name)
	return flag.Changed || opposite != nil && opposite.Changed
}

// chooseRay sets the executor where only the address of its cluster is given.
func chooseRay(f *pflag.FlagSet) error {
	address, backend := f.Lookup("ray-address"), f.Lookup("distributed-executor-backend")
	switch {
	case address == nil || backend == nil || !address.Changed || address.Value.String() == "":
		return nil
	case !backend.Changed:
		return f.Set(backend.Name, "ray")
	case backend.Value.String() != "ray":
		return usage("--ray-address %s with --distributed-executor-backend %s: only ray starts "+
			"workers on a cluster", address.Value, backend.Value)
	}
	return nil
}

// hint names the flag that may be meant.
func hint(f *pflag.FlagSet, name string) string {
	if near := Similar(f, name); near != "" && near != name {
		return fmt.Sprintf(" (did you mean %s?)", near)
	}
	return ""
}

// lookup finds the environment variable that stands for a flag; name is "" when none is set.
func lookup(flag *pflag.Flag) (name, value string) {
	name = Env + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
	// For a service called eagleray Kubernetes sets EAGLERAY_PORT=tcp://…, which is not meant for
	// us.
	if v, ok := os.LookupEnv(name); ok && !strings.HasPrefix(v, "tcp://") &&
		!strings.HasPrefix(v, "udp://") {
		return name, v
	}
	for _, alias := range flag.Annotations[aliases] {
		if v := os.Getenv(alias); v != "" {
			return alias, v
		}
	}
	return "", ""
}
