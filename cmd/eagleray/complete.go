package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/internal/ops/hub"
)

// completeModels lets shells complete models in all commands that take one.
func completeModels(c *cobra.Command) {
	if strings.Contains(c.Use, "[MODEL]") {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, word string) (
			[]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return models(c, args, word)
		}
	}
	for _, name := range []string{"model", "tokenizer"} {
		if f := c.Flags().Lookup(name); f != nil && strings.Contains(f.Usage, "folder") {
			// It fails when a flag is completed twice.
			_ = c.RegisterFlagCompletionFunc(name, models)
		}
	}
	for _, sub := range c.Commands() {
		completeModels(sub)
	}
}

// models are the folders that hold a model, those on the way to one, with a slash at the end, and
// the repos in the Hub's cache.
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
	var opt hub.Options
	if f := c.Flags().Lookup("download-dir"); f != nil {
		opt.DownloadDir = f.Value.String()
	}
	for _, repo := range hub.Cached(opt) {
		if strings.HasPrefix(repo, word) {
			found = append(found, repo)
		}
	}
	return found, directive
}

// folders are those whose path begins with word, written as word is. Hidden ones are found when
// their name is begun.
func folders(word string) []string {
	dir, started := filepath.Split(word)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, started) || strings.HasPrefix(name, ".") && started == "" {
			continue
		}
		if info, err := os.Stat(dir + name); err == nil && info.IsDir() {
			found = append(found, dir+name)
		}
	}
	return found
}
