package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Location is where a model is, of what a user calls it.
type Location struct {
	// Model is a folder, a file, or the name of a repository, with a tag where one was given.
	Model string
	// Revision is the one that an address of the Hub's names; "" is none.
	Revision string
	// Repo is the repository that a folder of the Hub's cache belongs to; "" for all else.
	Repo string
}

// Locate finds what is meant by an address of the Hub's pages (https://huggingface.co/org/name),
// which is its repository, and by a repository's folder in the Hub's cache (models--org--name),
// which is the snapshot of the revision, main by default, or else the only one there is. An address
// of a bucket is looked at, and all else is what it was. Nothing but the file system is asked.
func Locate(model, revision string) (Location, error) {
	if _, err := os.Stat(model); err != nil {
		if _, _, ok, err := parseBucket(model); ok || err != nil {
			return Location{Model: model}, err
		}
		if l, ok, err := locateAddress(model); ok || err != nil {
			return l, err
		}
		return Location{Model: model}, nil
	}
	base := filepath.Base(filepath.Clean(model))
	snapshots := filepath.Join(model, "snapshots")
	if info, err := os.Stat(snapshots); err != nil || !info.IsDir() ||
		!strings.HasPrefix(base, marker) {
		return Location{Model: model}, nil
	}
	abs, err := filepath.Abs(model)
	if err != nil {
		return Location{}, err
	}
	repo, _ := repoOf(base)
	c := repoCache{root: filepath.Dir(abs), repo: repo}
	commit, err := c.only(revision)
	if err != nil {
		return Location{}, fmt.Errorf("model %q is a folder of the Hub's cache: %w", model, err)
	}
	return Location{Model: filepath.Join(snapshots, commit), Repo: repo}, nil
}

// hubHosts are the names of the public Hub.
var hubHosts = []string{"huggingface.co", "www.huggingface.co", "hf.co"}

// locateAddress reads the address of a page of the Hub's; ok is false for what is none. The scheme
// may be left out, as Ollama has it.
func locateAddress(model string) (l Location, ok bool, err error) {
	rest, isURL := strings.CutPrefix(model, "https://")
	if !isURL {
		rest, isURL = strings.CutPrefix(model, "http://")
	}
	if hf, found := strings.CutPrefix(model, "hf://"); found {
		rest, isURL = hubHosts[0]+"/"+strings.TrimPrefix(hf, "models/"), true
	}
	host, path, _ := strings.Cut(rest, "/")
	if !slices.Contains(addressHosts(), strings.ToLower(host)) {
		if isURL {
			err = fmt.Errorf("model %q is an address, and not one of the Hub's: a folder, a file "+
				"of GGUF, a Hub repository or its address is expected", model)
		}
		return l, false, err
	}
	path, _, _ = strings.Cut(path, "?")
	path, _, _ = strings.Cut(path, "#")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) < 2 || slices.Contains([]string{"datasets", "spaces", "collections", "papers",
		"models"}, parts[0]) {
		return l, false, fmt.Errorf("model %q is an address of the Hub's, and not that of a "+
			"model, such as https://%s/org/name", model, hubHosts[0])
	}
	l.Model = parts[0] + "/" + parts[1]
	switch more := parts[2:]; {
	case len(more) == 0:
	case len(more) >= 2 && more[0] == "tree":
		if l.Revision, err = url.PathUnescape(strings.Join(more[1:], "/")); err != nil {
			return l, false, fmt.Errorf("model %q: %w", model, err)
		}
	case more[0] == "tree":
	case more[0] == "blob" || more[0] == "resolve":
		return l, false, fmt.Errorf("model %q is the address of one file: give its repository, "+
			"%s, with the quantisation if it has files of GGUF, as in %s:Q4_K_M", model, l.Model,
			l.Model)
	default:
		return l, false, fmt.Errorf("model %q is a page of the repository %s: give that", model,
			l.Model)
	}
	return l, true, nil
}

// addressHosts are the hosts of addresses of the Hub's pages: the public one's, and that of
// $HF_ENDPOINT.
func addressHosts() []string {
	u, err := url.Parse(os.Getenv("HF_ENDPOINT"))
	if err != nil || u.Host == "" {
		return hubHosts
	}
	return append(slices.Clone(hubHosts), strings.ToLower(u.Host))
}

// only is the commit of a revision, main by default, in the cache; without that of main it is the
// only one that there is.
func (c repoCache) only(revision string) (string, error) {
	if commitHash.MatchString(revision) {
		return revision, nil
	}
	asked := revision
	if asked == "" {
		asked = "main"
	}
	if err := validRevision(asked); err != nil {
		return "", err
	}
	commit, err := c.ref(asked)
	if err == nil || revision != "" || !errors.Is(err, fs.ErrNotExist) {
		return commit, err
	}
	entries, err := os.ReadDir(filepath.Join(c.dir(), "snapshots"))
	if err != nil {
		return "", err
	}
	var commits []string
	for _, e := range entries {
		commits = append(commits, e.Name())
	}
	switch len(commits) {
	case 0:
		return "", errors.New("it has no snapshot: its download was not finished (eagleray pull " +
			c.repo + " goes on with it)")
	case 1:
		return commits[0], nil
	}
	return "", fmt.Errorf("it has several snapshots and no reference to main: give one of them "+
		"with --revision (%s)", strings.Join(commits, ", "))
}
