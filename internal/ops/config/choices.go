package config

import (
	"slices"

	"github.com/spf13/pflag"
)

// Annotations of flags with what their values are, for shells and for help.
const (
	choicesOf = "choices"
	pathOf    = "path"
)

// Path says what the value of a flag names. A model is a folder, a file in GGUF or a repo of the
// Hub.
type Path string

// The kinds of paths.
const (
	PathFile   Path = "file"
	PathFolder Path = "folder"
	PathModel  Path = "model"
)

// Choices declares words that the value of a flag may be.
func Choices(f *pflag.FlagSet, name string, words ...string) { annotate(f, name, choicesOf, words) }

// Paths declares that the values of flags name something on the disk.
func Paths(f *pflag.FlagSet, kind Path, names ...string) {
	for _, name := range names {
		annotate(f, name, pathOf, []string{string(kind)})
	}
}

func annotate(f *pflag.FlagSet, name, key string, values []string) {
	x := f.Lookup(name)
	if x.Annotations == nil {
		x.Annotations = map[string][]string{}
	}
	x.Annotations[key] = values
}

// ChoicesOf are the words that were declared for a flag, or the values of a known flag that are
// accepted; nil for none.
func ChoicesOf(x *pflag.Flag) []string {
	k, known := x.Value.(*knownValue)
	if !known {
		return x.Annotations[choicesOf]
	}
	if k.Switch || slices.Contains(k.Allowed, AnyValue) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(k.Allowed), func(word string) bool {
		return slices.Contains(none, word)
	})
}

// PathOf is what was declared that a flag's value names; "" is nothing.
func PathOf(x *pflag.Flag) Path {
	if kind := x.Annotations[pathOf]; len(kind) > 0 {
		return Path(kind[0])
	}
	return ""
}
