package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
)

// completions has shells complete the arguments and the values of flags of all commands.
func completions(c *cobra.Command) {
	if c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 {
		c.ValidArgsFunction = arguments(c.Use)
	}
	c.LocalFlags().VisitAll(func(x *pflag.Flag) {
		// It fails when a flag is completed twice.
		_ = c.RegisterFlagCompletionFunc(x.Name, valuesOf(x))
	})
	for _, sub := range c.Commands() {
		completions(sub)
	}
}

// completes tells whether the arguments are those of a shell that completes.
func completes(args []string) bool {
	return len(args) > 1 && (args[0] == cobra.ShellCompRequestCmd ||
		args[0] == cobra.ShellCompNoDescRequestCmd)
}

// completionArgs are the arguments of a shell that completes, in the spellings that the flag
// library knows. The last word is what is being written.
func completionArgs(root *cobra.Command, args []string) []string {
	last := len(args) - 1
	c, _, err := root.Find(args[1:last])
	if err != nil {
		return args
	}
	written := config.Expand(c.Flags(), args[1:last])
	return append(append([]string{args[0]}, written...), args[last])
}

// arguments completes those that a line of usage names; nil leaves them to the shell, which knows
// files.
func arguments(usage string) cobra.CompletionFunc {
	switch {
	case strings.Contains(usage, "[MODEL]"):
		return func(c *cobra.Command, args []string, word string) ([]string,
			cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nothing(c, args, word)
			}
			return models(c, args, word)
		}
	case strings.HasSuffix(usage, " MODEL..."): // pull goes on with what is there
		return cachedModels
	case strings.HasSuffix(usage, " FILE..."):
		return nil
	case strings.HasSuffix(usage, " FOLDER"), strings.HasSuffix(usage, " DIR"):
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
	}
	return nothing
}

// nothing is the completion of what only the user knows.
func nothing(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// valuesOf completes the value of a flag by what was declared of it.
func valuesOf(x *pflag.Flag) cobra.CompletionFunc {
	choices, path := config.ChoicesOf(x), config.PathOf(x)
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		found := withPrefix(choices, word)
		switch {
		case path == config.PathModel:
			return models(c, args, word)
		case path == config.PathFile:
			return found, cobra.ShellCompDirectiveDefault
		case path == config.PathFolder && len(found) == 0:
			return nil, cobra.ShellCompDirectiveFilterDirs
		case path == config.PathFolder:
			return append(found, folders(word)...), cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func withPrefix(words []string, start string) []string {
	var found []string
	for _, w := range words {
		if strings.HasPrefix(w, start) {
			found = append(found, w)
		}
	}
	return found
}

// models are the folders that hold a model, those on the way to one, with a slash at the end, files
// in GGUF, and the repos in the Hub's cache.
func models(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	var found []string
	for _, folder := range folders(word) {
		if _, err := os.Stat(filepath.Join(folder, "config.json")); err != nil {
			folder += "/"
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		found = append(found, folder)
	}
	found = append(found, entries(word, func(name string, info os.FileInfo) bool {
		return info.Mode().IsRegular() && strings.HasSuffix(name, ".gguf")
	})...)
	return append(found, withPrefix(hub.Cached(cacheOf(c)), word)...), directive
}

// cachedModels are the models that list lists.
func cachedModels(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	repos, err := hub.List(cacheOf(c))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, r := range repos {
		names = append(names, r.Name)
	}
	return withPrefix(names, word), cobra.ShellCompDirectiveNoFileComp
}

// cacheOf is the Hub's cache of a command.
func cacheOf(c *cobra.Command) hub.Options {
	if f := c.Flags().Lookup("download-dir"); f != nil {
		return hub.Options{DownloadDir: f.Value.String()}
	}
	return hub.Options{}
}

// folders are those whose path begins with word.
func folders(word string) []string {
	return entries(word, func(_ string, info os.FileInfo) bool { return info.IsDir() })
}

// entries are what lies where a path begins with word, written as word is. Hidden ones are found
// when their name is begun.
func entries(word string, wanted func(name string, info os.FileInfo) bool) []string {
	dir, started := filepath.Split(word)
	list, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range list {
		name := e.Name()
		if !strings.HasPrefix(name, started) || strings.HasPrefix(name, ".") && started == "" {
			continue
		}
		if info, err := os.Stat(dir + name); err == nil && wanted(name, info) {
			found = append(found, dir+name)
		}
	}
	return found
}
