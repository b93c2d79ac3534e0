package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// groupOf is the annotation of a flag with what it is about.
const groupOf = "group"

// ModelGroup is the group of flags that are about the model.
const ModelGroup = "ModelConfig"

// InGroup says what one flag is about.
func InGroup(f *pflag.FlagSet, flag, group string) { annotate(f, flag, groupOf, []string{group}) }

// markGroup says what all flags are about that were defined since the last call: no name for those
// that a command has for itself. Copies of it at each place would take kilobytes of the program.
//
//go:noinline
func markGroup(f *pflag.FlagSet, name ...string) {
	f.VisitAll(func(x *pflag.Flag) {
		if x.Annotations == nil {
			x.Annotations = map[string][]string{}
		}
		if x.Annotations[groupOf] == nil {
			x.Annotations[groupOf] = append([]string{}, name...)
		}
	})
}

// Groups are what the flags of f are about, in alphabetical order; the others have no group.
func Groups(f *pflag.FlagSet) []string {
	var names []string
	f.VisitAll(func(x *pflag.Flag) { names = append(names, x.Annotations[groupOf]...) })
	slices.Sort(names)
	return slices.Compact(names)
}

// GroupOf is what a flag is about, "" for one that its command has for itself.
func GroupOf(x *pflag.Flag) string {
	if of := x.Annotations[groupOf]; len(of) > 0 {
		return of[0]
	}
	return ""
}

// Shown are the flags of f that do something, in its order.
func Shown(f *pflag.FlagSet) []*pflag.Flag {
	var list []*pflag.Flag
	f.VisitAll(func(x *pflag.Flag) {
		if !x.Hidden {
			list = append(list, x)
		}
	})
	return list
}

// Own are the flags that are no engine's and no server's.
func Own(f *pflag.FlagSet) []*pflag.Flag {
	return slices.DeleteFunc(Shown(f), func(x *pflag.Flag) bool { return GroupOf(x) != "" })
}

// Find returns flags of f by a topic: a group, else the flag of that name, else those that have it
// in their name; "all" is every one. Flags that do nothing here are only found by "all" and by
// name.
func Find(f *pflag.FlagSet, topic string) []*pflag.Flag {
	topic = strings.TrimLeft(topic, "-")
	every := strings.EqualFold(topic, "all")
	var group, part []*pflag.Flag
	word := string(Normalize(f, strings.ToLower(topic)))
	f.VisitAll(func(x *pflag.Flag) {
		switch {
		case every, strings.EqualFold(GroupOf(x), topic):
			if every || !x.Hidden {
				group = append(group, x)
			}
		case strings.Contains(x.Name, word):
			part = append(part, x)
		}
	})
	if group != nil {
		return group
	}
	if x := cmp.Or(f.Lookup(word), opposite(f, word)); x != nil {
		return []*pflag.Flag{x}
	}
	return slices.DeleteFunc(part, func(x *pflag.Flag) bool { return x.Hidden })
}

// Names are the other spellings of a flag: environment variables, and further names.
func Names(x *pflag.Flag) []string {
	names := []string{variableOf(x.Name)}
	names = append(names, x.Annotations[aliases]...)
	for other, name := range otherNames {
		if name == x.Name {
			names = append(names, "--"+other, variableOf(other))
		}
	}
	for letters, name := range short {
		if name == "--"+x.Name {
			names = append(names, letters)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
