// Package hub turns what a user calls a model into a local folder: a folder is taken as it is, a
// repository of the Hugging Face Hub is downloaded into the cache that Hugging Face's own tools
// use, in the same layout, so that both find each other's files. Downloads resume where they were
// cut, are checked against the Hub's hashes, and appear in the cache only when they are whole.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Errors that a caller may want to tell apart.
var (
	// ErrNotFound means that the Hub knows no such repository or revision, or does not show it to
	// this user.
	ErrNotFound = errors.New("not found on the Hub")
	// ErrAccess means that the Hub refuses the download to this user, as for a gated repository.
	ErrAccess = errors.New("access refused by the Hub")
	// ErrOffline means that a file is needed that the cache lacks, and that the Hub may not or
	// cannot be asked.
	ErrOffline = errors.New("not in the cache")
	// ErrCorrupt means that what was downloaded is not what the Hub announced.
	ErrCorrupt = errors.New("download is corrupt")
)

// Progress reports a download.
type Progress struct {
	File        string // the file's name in the repository
	Done, Total int64  // bytes of this file; Total is -1 when the Hub does not say
	// AllDone and AllTotal are the bytes of all files of the model that had to be downloaded.
	AllDone, AllTotal int64
}

// Options adjusts Resolve. The zero value follows the environment as Hugging Face's tools do.
type Options struct {
	// Revision is a branch, tag or commit of the repository; main by default.
	Revision string
	// DownloadDir replaces the Hub's cache folder: $HF_HUB_CACHE, else $HF_HOME/hub, else
	// ~/.cache/huggingface/hub.
	DownloadDir string
	// Token authenticates; by default $HF_TOKEN, else the file that "hf auth login" writes
	// ($HF_TOKEN_PATH, else $HF_HOME/token). It is sent to the Hub alone, never to the servers that
	// the Hub redirects to.
	Token string
	// Endpoint is the Hub's address; $HF_ENDPOINT by default, else the public Hub.
	Endpoint string
	// Files, unless it is nil, are those of the repository's top folder that are wanted, in the
	// place of a model's.
	Files []string
	// Offline uses the cache only; $HF_HUB_OFFLINE sets it, too.
	Offline bool
	// Progress is called now and then while files are downloaded, from one goroutine at a time.
	Progress func(Progress)
	// Warn is called about what does not stop the work, such as an unreachable Hub when the cache
	// has the model.
	Warn func(message string)

	// Ask is called before the Hub is asked for a repository, with its address.
	Ask func(hub string)

	// Tests only: the pause before the first retry, how long a silent body is waited for, and how
	// long the first answer.
	firstWait, idle, reach time.Duration
}

// Resolve returns the folder of a model: model itself if that is a folder or a file of GGUF, else
// the snapshot of the Hub repository of that name ("org/name"), downloading what the cache lacks.
// Only the files an engine needs are downloaded: weights in safetensors format, configuration,
// tokenizer and chat template; of a repository that has weights in GGUF alone, or of a name with
// a tag ("org/name:Q4_K_M"), the files of one quantisation, of which the first is returned. What
// else a model may be called is Locate's.
//
// The error wraps [ErrNotFound], [ErrAccess], [ErrOffline] or [ErrCorrupt] where one applies, or
// the context's error.
func Resolve(ctx context.Context, model string, opt Options) (dir string, err error) {
	at, err := Locate(model, opt.Revision)
	if err != nil {
		return "", err
	}
	model, opt.Revision = at.Model, cmp.Or(opt.Revision, at.Revision)
	info, err := os.Stat(model)
	if b, tag, ok, wrong := parseBucket(model); err != nil && (ok || wrong != nil) {
		if wrong != nil {
			return "", wrong
		}
		return resolveBucket(ctx, b, tag, opt)
	}
	switch {
	case err == nil && (info.IsDir() || isGGUF(model)):
		return model, nil
	case err == nil:
		return "", fmt.Errorf("model %q is a file: a folder, a file of GGUF or a Hub repository "+
			"is expected", model)
	case IsPath(model) || errors.Is(err, fs.ErrPermission):
		if path := (*fs.PathError)(nil); errors.As(err, &path) {
			err = path.Err
		}
		return "", fmt.Errorf("model %q: %w", model, err)
	}
	name, tag, _ := strings.Cut(model, ":")
	if err := validTag(model, tag); err != nil {
		return "", err
	}
	if err := validRepo(name); err != nil {
		return "", fmt.Errorf("model %q is neither a folder nor a Hub repository: %w", model, err)
	}
	if opt.Revision == "" {
		opt.Revision = "main"
	}
	if err := validRevision(opt.Revision); err != nil {
		return "", err
	}
	env, err := readEnvironment(opt)
	if err != nil {
		return "", err
	}
	r := &resolver{
		repo: name, tag: tag, revision: opt.Revision,
		cache: repoCache{root: env.cache, repo: name},
		from:  newClient(env, opt), opt: opt,
	}
	if env.offline {
		return r.cached("offline mode is on")
	}
	defer r.from.close()
	if opt.Ask != nil {
		opt.Ask(env.endpoint.String())
	}
	return r.online(ctx)
}

// IsPath reports whether the user clearly means a folder or a file, so that its absence is
// not taken for a repository.
func IsPath(model string) bool {
	return filepath.IsAbs(model) || strings.HasPrefix(model, ".") ||
		strings.HasPrefix(model, "~") || strings.Count(model, "/") > 1 ||
		slices.Contains(fileKinds, strings.ToLower(filepath.Ext(model)))
}

// fileKinds end the names of files, and of no repository that could be used here.
var fileKinds = []string{".gguf", ".ggml", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx",
	".npz", ".h5", ".json", ".jinja", ".zip", ".tar", ".gz", ".tgz"}

var repoPart = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// validRepo applies the rules of huggingface_hub's validate_repo_id. They also make the name safe
// in a path and a URL.
func validRepo(repo string) error {
	parts := strings.Split(repo, "/")
	if len(parts) > 2 || len(repo) > 96 {
		return errors.New("a repository is named org/name, in at most 96 characters")
	}
	for _, p := range parts {
		if !repoPart.MatchString(p) {
			return errors.New("a repository's name has letters, digits, '-', '_' and '.' only, " +
				"and neither starts nor ends with '-' or '.'")
		}
	}
	if strings.Contains(repo, "--") || strings.Contains(repo, "..") ||
		strings.HasSuffix(repo, ".git") {
		return errors.New("a repository's name has neither \"--\" nor \"..\" and does not end in " +
			"\".git\"")
	}
	return nil
}

var revisionPart = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+@=-]*$`)

// validRevision keeps a revision, which names a file under refs, inside that folder.
func validRevision(revision string) error {
	for _, p := range strings.Split(revision, "/") {
		if !revisionPart.MatchString(p) || strings.Contains(p, "..") || len(revision) > 200 {
			return fmt.Errorf("revision %.200q is not the name of a branch, tag or commit",
				revision)
		}
	}
	return nil
}

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// resolver resolves one revision of one repository.
type resolver struct {
	repo, revision string
	// tag is the quantisation that is asked for, "" for none.
	tag   string
	cache repoCache
	from  origin
	opt   Options
}

func (r *resolver) warn(format string, args ...any) {
	if r.opt.Warn != nil {
		r.opt.Warn(fmt.Sprintf(format, args...))
	}
}

// cached returns the snapshot in the cache if it is complete; why says what keeps the Hub from
// being asked.
func (r *resolver) cached(why string) (string, error) {
	commit := r.revision
	if !commitHash.MatchString(commit) {
		var err error
		if commit, err = r.cache.ref(r.revision); err != nil {
			return "", fmt.Errorf("model %s, revision %s: %w (%s has no such reference; %s)",
				r.repo, r.revision, ErrOffline, r.cache.dir(), why)
		}
	}
	dir := r.cache.snapshot(commit)
	if files := cachedGGUF(dir, r.tag); files != nil {
		return filepath.Join(dir, files[0]), nil
	}
	missing, err := missingFiles(dir, r.opt.Files)
	if r.tag != "" {
		missing = []string{"files of GGUF for " + r.tag}
	}
	if err != nil {
		return "", fmt.Errorf("model %s: %w", r.repo, err)
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("model %s, revision %s: %w: %s (in %s; %s)", r.repo, r.revision,
			ErrOffline, strings.Join(missing, ", "), dir, why)
	}
	return dir, nil
}

// online asks the Hub which commit the revision is, and makes its snapshot complete.
func (r *resolver) online(ctx context.Context) (string, error) {
	fallback, fallbackErr := r.cached("")
	// With the model in the cache an unreachable Hub is no reason to keep the user waiting.
	attempts := maxAttempts
	if fallbackErr == nil {
		attempts = 1
	}
	info, err := r.from.modelInfo(ctx, r.repo, r.revision, attempts)
	if err != nil {
		if fallbackErr != nil {
			return "", fmt.Errorf("model %s: %w", r.repo, r.from.hint(ctx, err))
		}
		if !unreachable(ctx, err) {
			return "", fmt.Errorf("model %s: %w", r.repo, err)
		}
		r.warn("%s cannot be reached, using the cached snapshot %s: %v", r.from.name(), fallback,
			err)
		return fallback, nil
	}
	first, err := r.complete(ctx, info)
	if err != nil {
		return "", fmt.Errorf("model %s: %w", r.repo, err)
	}
	if r.revision != info.Commit {
		if err := r.cache.setRef(r.revision, info.Commit); err != nil {
			r.warn("cannot note the commit of revision %s: %v", r.revision, err)
		}
	}
	return filepath.Join(r.cache.snapshot(info.Commit), first), nil
}
