package hub

import (
	"path/filepath"
	"slices"
)

// marker begins the name of a model's folder in the cache.
const marker = "models--"

// Cached are the repositories of which the cache holds a model, in alphabetical order. The Hub is
// not asked; a cache that cannot be read holds none.
func Cached(opt Options) []string {
	env, err := readEnvironment(opt)
	if err != nil {
		return nil
	}
	// The pattern is well formed unless the cache's path has its characters.
	configs, _ := filepath.Glob(filepath.Join(env.cache, "*--*", "snapshots", "*", "config.json"))
	var repos []string
	for _, path := range configs {
		folder := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path))))
		if repo, ok := repoOf(folder); ok {
			repos = append(repos, repo)
		}
	}
	slices.Sort(repos)
	return slices.Compact(repos)
}
