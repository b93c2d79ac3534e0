package hub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

const (
	// maxObjects bounds what a model's folder may hold; a store lists a thousand at a time.
	maxObjects = 20_000
	// maxList bounds one answer of a list, maxRefusal that which explains an error.
	maxList    = 16 << 20
	maxRefusal = 64 << 10

	headerRegion = "X-Amz-Bucket-Region"
	publicGS     = "https://storage.googleapis.com"
	defaultS3    = "us-east-1"
)

// store asks for the objects of a bucket, over S3's API or the XML API of Google's store, which is
// the same for lists and objects.
type store struct {
	transfer
	at bucket
	// endpoint is the address of all buckets, "" for Amazon's, which depends on the region.
	endpoint string
	signer   signer

	mu     sync.Mutex
	region string
	listed map[string]object // by their names in the folder
}

// object is what a list says of one.
type object struct {
	etag string
	size int64
}

// resolveBucket is Resolve for a bucket. Its files have no revision: their list is the commit.
func resolveBucket(ctx context.Context, b bucket, tag string, opt Options) (string, error) {
	if opt.Revision != "" && !commitHash.MatchString(opt.Revision) {
		return "", fmt.Errorf("model %s: a bucket has no revisions: leave out --revision %s", b,
			opt.Revision)
	}
	root, err := CacheDir(opt.DownloadDir)
	if err != nil {
		return "", err
	}
	r := &resolver{repo: b.String(), tag: tag, revision: cmp.Or(opt.Revision, "main"),
		cache: repoCache{root: root, repo: b.String()}, opt: opt}
	if opt.Offline {
		return r.cached("offline mode is on")
	}
	if opt.Revision != "" {
		if dir, err := r.cached(""); err == nil {
			return dir, nil
		}
	}
	s, err := newStore(ctx, b, opt)
	if err != nil {
		return "", fmt.Errorf("model %s: %w", b, err)
	}
	defer s.close()
	r.from = s
	if opt.Ask != nil {
		opt.Ask(s.host())
	}
	return r.online(ctx)
}

func newStore(ctx context.Context, b bucket, opt Options) (*store, error) {
	s := &store{at: b, transfer: newTransfer(opt)}
	s.content = &http.Client{Transport: newTransport(),
		// An answer that leads elsewhere names the bucket's region, see moved.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	var err error
	if b.scheme == "gs" {
		s.endpoint, err = endpointOf(publicGS, "STORAGE_EMULATOR_HOST")
		if err == nil {
			s.signer, err = googleSigner(ctx, b, s.endpoint != publicGS)
		}
		return s, err
	}
	s.region = cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), defaultS3)
	if s.endpoint, err = endpointOf("", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"); err != nil {
		return nil, err
	}
	s.signer, err = awsSigner(ctx, b)
	return s, err
}

// endpointOf is the address that the first variable that is set gives, with http:// where it has no
// scheme, as emulators are given.
func endpointOf(other string, names ...string) (string, error) {
	for _, name := range names {
		v := strings.TrimRight(os.Getenv(name), "/")
		if v == "" {
			continue
		}
		if !strings.Contains(v, "://") {
			v = "http://" + v
		}
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
			u.User != nil || u.RawQuery != "" {
			return "", fmt.Errorf("%s: %q is not of the form https://host", name, v)
		}
		return v, nil
	}
	return other, nil
}

func (s *store) name() string { return s.host() }

// host is who is asked.
func (s *store) host() string {
	if s.endpoint != "" {
		return s.endpoint
	}
	return "https://s3." + s.inRegion() + "." + amazonDomain(s.inRegion())
}

func amazonDomain(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

func (s *store) inRegion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.region
}

// address is that of the bucket, or of an object in it. Amazon has buckets as hosts, whose
// certificate does not cover names with dots; other stores are asked by paths, which all know.
func (s *store) address(key string) (*url.URL, error) {
	base, path := s.host(), "/"+s.at.name+"/"+key
	if s.endpoint == "" && !strings.Contains(s.at.name, ".") {
		base = strings.Replace(base, "https://", "https://"+s.at.name+".", 1)
		path = "/" + key
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	// What is signed is escaped so, which is more than net/url escapes in paths.
	u.Path, u.RawPath = u.Path+path, u.EscapedPath()+s3utils.EncodePath(path)
	return u, nil
}

// do asks, and asks again where the bucket turns out to be in another region.
func (s *store) do(ctx context.Context, method, key string, query url.Values,
	adjust func(*http.Request)) (*http.Response, error) {
	for again := false; ; again = true {
		u, err := s.address(key)
		if err != nil {
			return nil, permanent{err}
		}
		u.RawQuery = query.Encode()
		req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
		if err != nil {
			return nil, permanent{err}
		}
		req.Header.Set("User-Agent", userAgent)
		if adjust != nil {
			adjust(req)
		}
		region := s.inRegion()
		if err := s.signer.sign(req, region); err != nil {
			return nil, err
		}
		res, err := s.content.Do(req)
		if err != nil || again || !s.moved(res, region) {
			return res, err
		}
		res.Body.Close()
	}
}

// moved takes over the region that the store says the bucket is in.
func (s *store) moved(res *http.Response, asked string) bool {
	region := res.Header.Get(headerRegion)
	if res.StatusCode < 300 || region == "" || region == asked {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.region = region
	return true
}

// listing is a part of the list of a bucket's objects
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html).
type listing struct {
	XMLName  xml.Name `xml:"ListBucketResult"`
	Contents []struct {
		Key, ETag string
		Size      int64
	}
	IsTruncated           bool
	NextContinuationToken string
}

// modelInfo lists the model's folder. The commit is the hash of what makes up a model in the list,
// so that it is another one when a file is.
func (s *store) modelInfo(ctx context.Context, _, revision string,
	attempts int) (modelInfo, error) {
	s.listed = map[string]object{}
	next := ""
	for {
		var part listing
		err := s.retry(ctx, attempts, func() (bool, error) {
			query := url.Values{"list-type": {"2"}}
			if prefix := s.at.inFolder(); prefix != "" {
				query.Set("prefix", prefix)
			}
			if next != "" {
				query.Set("continuation-token", next)
			}
			res, err := s.do(ctx, http.MethodGet, "", query, nil)
			if err != nil {
				return false, err
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				return false, s.refused(res, "list")
			}
			body := newIdleReader(res.Body, s.idle)
			defer body.stop()
			part = listing{}
			raw, err := io.ReadAll(io.LimitReader(body, maxList))
			if err != nil {
				return false, err
			}
			if err := xml.Unmarshal(raw, &part); err != nil {
				return false, permanent{fmt.Errorf("%s does not answer as S3 does: %w", s.host(),
					err)}
			}
			return false, nil
		})
		if err != nil {
			return modelInfo{}, err
		}
		for _, c := range part.Contents {
			name := strings.TrimPrefix(c.Key, s.at.inFolder())
			if name != "" && !strings.HasSuffix(name, "/") {
				s.listed[name] = object{plainETag(c.ETag), c.Size}
			}
		}
		if len(s.listed) > maxObjects {
			return modelInfo{}, permanent{fmt.Errorf("%s holds more than %d objects: give the "+
				"model's own folder", s.at, maxObjects)}
		}
		if !part.IsTruncated || part.NextContinuationToken == "" {
			break
		}
		next = part.NextContinuationToken
	}
	return s.model(revision)
}

// model makes of the list what a Hub says of a repository.
func (s *store) model(revision string) (modelInfo, error) {
	var info modelInfo
	var elsewhere string
	found, h := false, sha1.New()
	for name := range s.listed {
		switch {
		case isPart(name):
			info.Files = append(info.Files, name)
			found = found || name == "config.json" || isGGUF(name)
		case strings.HasSuffix(name, "/config.json") && (elsewhere == "" || name < elsewhere):
			elsewhere = name
		}
	}
	slices.Sort(info.Files)
	for _, name := range info.Files {
		fmt.Fprintf(h, "%s\x00%s\x00%d\n", name, s.listed[name].etag, s.listed[name].size)
	}
	info.Commit = hex.EncodeToString(h.Sum(nil))
	var why string
	switch {
	case len(s.listed) == 0:
		why = fmt.Sprintf("there is nothing under %q in the bucket %s", s.at.inFolder(), s.at.name)
	case !found && elsewhere != "":
		why = fmt.Sprintf("there is no config.json there, but %s/%s", s.at, elsewhere)
	case !found:
		why = "there is no config.json there"
	case commitHash.MatchString(revision) && revision != info.Commit:
		why = "its files are others than those that the first node found: start anew"
	default:
		return info, nil
	}
	return info, permanent{refusal{ErrNotFound, why}}
}

// isPart says whether an object of the folder can be one of the files that make up a model.
func isPart(name string) bool {
	top := !strings.Contains(name, "/")
	return top && (needed(name) || strings.HasSuffix(name, ".safetensors")) || ofModule(name) ||
		isGGUF(name)
}

// fileInfo asks for an object's checksum. Blobs are named by all that tells one content from
// another: an ETag alone need not.
func (s *store) fileInfo(ctx context.Context, _, _, name string) (fileInfo, error) {
	o := s.listed[name]
	info := fileInfo{name: name, size: o.size}
	err := s.retry(ctx, maxAttempts, func() (bool, error) {
		res, err := s.do(ctx, http.MethodHead, s.at.inFolder()+name, nil, s.withChecksum)
		if err != nil {
			return false, err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return false, s.refused(res, "read "+name)
		}
		if etag := plainETag(res.Header.Get("ETag")); etag != o.etag {
			return false, permanent{fmt.Errorf("file %s has changed since the bucket was listed: "+
				"start anew", name)}
		}
		info.sum, info.want = checksum(res.Header, o.etag)
		return false, nil
	})
	id := sha256.Sum256([]byte(s.at.String() + "\x00" + name + "\x00" + o.etag + "\x00" +
		strconv.FormatInt(o.size, 10)))
	info.etag = s.at.scheme + "-" + hex.EncodeToString(id[:16])
	return info, err
}

func (s *store) withChecksum(req *http.Request) {
	if s.at.scheme == "s3" {
		req.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	}
}

// fetch asks for what the partial file lacks of an object that is still the listed one.
func (s *store) fetch(ctx context.Context, _, _ string, p *partial, report func()) error {
	name := p.info.name
	res, err := s.do(ctx, http.MethodGet, s.at.inFolder()+name, nil, func(req *http.Request) {
		req.Header.Set("If-Match", `"`+s.listed[name].etag+`"`)
		p.ask(req)
	})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusPreconditionFailed {
		return permanent{fmt.Errorf("%w since the bucket was listed: start anew", errChanged)}
	}
	err = p.check(res, func(res *http.Response) error { return s.refused(res, "read "+name) })
	if err != nil {
		return err
	}
	return s.fill(p, res.Body, report)
}

// plainETag is an ETag without the quotes and the mark of a weak validator.
func plainETag(etag string) string {
	return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`)
}

// checksums are those of a whole object that stores announce, the best first. Amazon's are
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html.
var checksums = []struct {
	header string
	sum    func() hash.Hash
}{
	{"X-Amz-Checksum-Sha256", sha256.New},
	{"X-Amz-Checksum-Crc64nvme", func() hash.Hash {
		return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5))
	}},
	{"X-Amz-Checksum-Crc32c", newCastagnoli},
	{"X-Amz-Checksum-Sha1", sha1.New},
	{"X-Amz-Checksum-Crc32", func() hash.Hash { return crc32.NewIEEE() }},
}

func newCastagnoli() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }

// checksum is the hash of an object's content that an answer has; nil for none. One that ends in a
// number of parts is of the parts' hashes. An ETag is the MD5 of what was stored at once, unless
// it was encrypted by a key that is not the store's own.
func checksum(h http.Header, etag string) (sum func() hash.Hash, want string) {
	plain := func(text string) string {
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return ""
		}
		return hex.EncodeToString(raw)
	}
	for _, c := range checksums {
		if want := plain(h.Get(c.header)); want != "" &&
			h.Get("X-Amz-Checksum-Type") != "COMPOSITE" {
			return c.sum, want
		}
	}
	for _, text := range h.Values("X-Goog-Hash") {
		for _, entry := range strings.Split(text, ",") {
			if v, found := strings.CutPrefix(strings.TrimSpace(entry), "crc32c="); found {
				if want := plain(v); want != "" {
					return newCastagnoli, want
				}
			}
		}
	}
	kind := h.Get("X-Amz-Server-Side-Encryption")
	if isHex(etag, md5.Size) && (kind == "" || kind == "AES256") &&
		h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") == "" {
		return md5.New, strings.ToLower(etag)
	}
	return nil, ""
}

// refusal is an error of a kind that is said in other words than the kind's own.
type refusal struct {
	kind error
	text string
}

func (r refusal) Error() string { return r.text }
func (r refusal) Unwrap() error { return r.kind }

// refused explains an answer in the user's words. what was to be done is a verb and its object.
func (s *store) refused(res *http.Response, what string) error {
	var said struct{ Code, Message string }
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if err == nil && bytes.Contains(raw, []byte("<Error>")) {
		// An explanation that cannot be read is none.
		_ = xml.Unmarshal(raw, &said)
	}
	return &statusError{status: res.StatusCode, wait: retryAfter(res),
		err: s.explain(res, what, said.Code, said.Message)}
}

func (s *store) explain(res *http.Response, what, code, message string) error {
	access := func(format string, args ...any) error {
		return refusal{ErrAccess, fmt.Sprintf(format, args...)}
	}
	switch status := res.StatusCode; {
	case code == "NoSuchBucket" || status == http.StatusNotFound && what == "list":
		return refusal{ErrNotFound, fmt.Sprintf("%s has no bucket %s", s.host(), s.at.name)}
	case status == http.StatusNotFound:
		return refusal{ErrNotFound, fmt.Sprintf("the bucket %s has no object %s%s any more",
			s.at.name, s.at.inFolder(), strings.TrimPrefix(what, "read "))}
	case code == "InvalidAccessKeyId":
		return access("%s does not know the key of %s", s.host(), s.signer.who())
	case code == "SignatureDoesNotMatch":
		return access("the secret key of %s is not that of its access key ID", s.signer.who())
	case code == "ExpiredToken" || code == "InvalidToken" || code == "TokenRefreshRequired":
		return access("the session of %s has ended, or its token is wrong: get another one",
			s.signer.who())
	case code == "RequestTimeTooSkewed":
		return access("this machine's clock is not that of %s", s.host())
	case code == "InvalidObjectState":
		return access("cannot %s: it is archived, and has to be restored first", what)
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		if s.signer.who() == "" {
			return access("%s lets nobody %s there without credentials, and there are none: %s",
				s.host(), what, s.signer.needed())
		}
		return access("%s may not %s there%s", s.signer.who(), what, ofMessage(code, message))
	}
	return fmt.Errorf("%s answers %s%s", s.host(), res.Status, ofMessage(code, message))
}

func ofMessage(code, message string) string {
	if code == "" {
		return ""
	}
	return fmt.Sprintf(" (%.60s: %.300s)", code, message)
}

// hint says of an error that no network explains where the store was looked for.
func (s *store) hint(ctx context.Context, err error) error {
	var status *statusError
	if errors.As(err, &status) || errors.As(err, &refusal{}) || !unreachable(ctx, err) {
		return err
	}
	if long := (*url.Error)(nil); errors.As(err, &long) {
		err = long.Err
	}
	return fmt.Errorf("%w, and %s cannot be reached: %w", ErrOffline, s.host(), err)
}
