package hub

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// bucket is a folder of objects in a store: s3://name/prefix, gs://name/prefix.
type bucket struct {
	scheme, name string
	// prefix is the folder's path, without slashes at its ends; "" is the bucket itself.
	prefix string
	// anonymous says that requests have no credentials: s3://anonymous@name/prefix, as Ray has it.
	anonymous bool
}

// bucketSchemes are those of the stores that are read, otherSchemes of those that are known.
var (
	bucketSchemes = []string{"s3", "gs"}
	otherSchemes  = []string{"abfs", "abfss", "az", "azure", "gcs", "s3a", "s3n"}
)

// maxPrefix keeps the name of a bucket's folder in the cache within what file systems take.
const maxPrefix = 180

// bucketName is what stores allow in 3 to maxBucketName bytes: S3's lower case letters, and what
// older ones have. A count in the pattern would be compiled at each start of the program.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]+[A-Za-z0-9]$`)

const maxBucketName = 222

// parseBucket reads the address of a model's folder in a bucket, or of a file of GGUF in one, whose
// name is then the tag; a tag behind a colon is a quantisation, as in a repository's name. ok is
// false for what is no address of a store.
func parseBucket(model string) (b bucket, tag string, ok bool, err error) {
	scheme, rest, _ := strings.Cut(model, "://")
	if slices.Contains(otherSchemes, scheme) && scheme != model {
		return b, "", false, fmt.Errorf("model %q: %s:// is not read: s3:// and gs:// are", model,
			scheme)
	}
	if !slices.Contains(bucketSchemes, scheme) || scheme == model {
		return b, "", false, nil
	}
	b.scheme = scheme
	wrong := func(format string, args ...any) (bucket, string, bool, error) {
		return bucket{}, "", false, fmt.Errorf("model %q: %s", model, fmt.Sprintf(format, args...))
	}
	b.name, b.prefix, _ = strings.Cut(rest, "/")
	if user, name, found := strings.Cut(b.name, "@"); found {
		if user != "anonymous" {
			return wrong("an address has no credentials in it, but for %s://anonymous@bucket/path",
				scheme)
		}
		b.name, b.anonymous = name, true
	}
	if len(b.name) > maxBucketName || !bucketName.MatchString(b.name) {
		return wrong("%q is not the name of a bucket, as in %s://bucket/path", b.name, scheme)
	}
	b.prefix = strings.Trim(b.prefix, "/")
	folder, file := "", b.prefix
	if at := strings.LastIndex(b.prefix, "/"); at >= 0 {
		folder, file = b.prefix[:at], b.prefix[at+1:]
	}
	if isGGUF(file) {
		b.prefix, tag = folder, part.ReplaceAllString(file, "")
	} else if before, after, found := strings.Cut(file, ":"); found {
		if err := validTag(model, after); err != nil {
			return bucket{}, "", false, err
		}
		b.prefix, tag = strings.TrimSuffix(b.prefix, file)+before, after
	}
	if b.prefix == "" {
		return b, tag, true, nil
	}
	if len(folderOf(b.String())) > maxPrefix {
		return wrong("the path has more than about %d characters", maxPrefix)
	}
	for _, p := range strings.Split(b.prefix, "/") {
		if p == "" || p == "." || p == ".." || strings.ContainsAny(p, "\\\x00") {
			return wrong("%q is no folder's name", p)
		}
	}
	return b, tag, true, nil
}

func (b bucket) String() string {
	s := b.scheme + "://" + b.name
	if b.prefix != "" {
		s += "/" + b.prefix
	}
	return s
}

// inFolder is what objects of the folder begin with.
func (b bucket) inFolder() string {
	if b.prefix == "" {
		return ""
	}
	return b.prefix + "/"
}

// folderOf names the folder of the cache that has a repository: models--org--name as Hugging Face's
// tools do, s3--bucket--path for a bucket, which they do not know.
func folderOf(repo string) string {
	scheme, path, found := strings.Cut(repo, "://")
	if !found {
		return marker + strings.ReplaceAll(repo, "/", "--")
	}
	parts := strings.Split(path, "/")
	for i, p := range parts {
		p = url.PathEscape(p)
		if strings.Contains("-"+p+"-", "--") { // it would be taken for a separator
			p = strings.ReplaceAll(p, "-", "%2D")
		}
		parts[i] = p
	}
	return scheme + "--" + strings.Join(parts, "--")
}

// repoOf is the repository that a folder of the cache has; ok is false for other folders.
func repoOf(folder string) (repo string, ok bool) {
	kind, rest, found := strings.Cut(folder, "--")
	switch {
	case !found:
		return "", false
	case kind+"--" == marker:
		repo = strings.ReplaceAll(rest, "--", "/")
		return repo, validRepo(repo) == nil
	case !slices.Contains(bucketSchemes, kind):
		return "", false
	}
	parts := strings.Split(rest, "--")
	for i, p := range parts {
		plain, err := url.PathUnescape(p)
		if err != nil {
			return "", false
		}
		parts[i] = plain
	}
	repo = kind + "://" + strings.Join(parts, "/")
	b, tag, ok, err := parseBucket(repo)
	return repo, ok && err == nil && tag == "" && b.String() == repo
}
