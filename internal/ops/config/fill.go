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
		flag, values := f.Lookup(name), file[name]
		if flag == nil {
			flag, values = opposite(f, name), slices.Clone(values)
			for i, v := range values {
				values[i] = contrary(v)
			}
		}
		if flag == nil || flag.Name == "config" || flag.Name == "help" {
			return usage("%s: %q is not a flag of this command%s", where, name, hint(f, name))
		}
		if flag.Changed {
			continue
		}
		for _, v := range values {
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
		if flag.Changed || failure != nil || flag.Name == "help" || flag.Name == "config" {
			return
		}
		name, value := lookup(f, flag)
		if name == "" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			failure = usage("environment variable %s: %w", name, FlagError(f, err))
		}
	})
	return failure
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

// lookup finds the environment variable that stands for a flag, by any of its names, or for the
// opposite of a switch; name is "" when none is set.
func lookup(f *pflag.FlagSet, flag *pflag.Flag) (name, value string) {
	if name, value = variable(flag.Name); name != "" {
		return name, value
	}
	for other, of := range otherNames {
		if of == flag.Name {
			if name, value = variable(other); name != "" {
				return name, value
			}
		}
	}
	for _, other := range opposites(flag.Name) {
		if isSwitch(flag) && f.Lookup(other) == nil {
			if name, value = variable(other); name != "" {
				return name, contrary(value)
			}
		}
	}
	for _, alias := range flag.Annotations[aliases] {
		if v := os.Getenv(alias); v != "" {
			return alias, v
		}
	}
	return "", ""
}

// variableOf is the name of a flag's environment variable.
func variableOf(flag string) string {
	return Env + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variable is the environment variable of a flag's name, and its value; name is "" when it is not
// set.
func variable(flag string) (name, value string) {
	name = variableOf(flag)
	// For a service called eagleray Kubernetes sets EAGLERAY_PORT=tcp://…, which is not meant for
	// us.
	if v, ok := os.LookupEnv(name); ok && !strings.HasPrefix(v, "tcp://") &&
		!strings.HasPrefix(v, "udp://") {
		return name, v
	}
	return "", ""
}
