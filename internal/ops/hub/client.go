package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxAttempts   = 6
	maxWait       = 30 * time.Second
	maxInfo       = 64 << 20
	maxRedirects  = 10
	userAgent     = "eagleray"
	headerCommit  = "X-Repo-Commit"
	headerETag    = "X-Linked-Etag"
	headerSize    = "X-Linked-Size"
	headerCode    = "X-Error-Code"
	headerMessage = "X-Error-Message"
)

// client sends requests to the Hub.
type client struct {
	endpoint *url.URL
	token    string
	reach    time.Duration // a Hub that has not answered at all for so long is given up
	warn     func(string)
	metadata *http.Client // stops at the redirect that carries the file's metadata
	transfer              // whose client follows redirects to other hosts, without the token
}

func newClient(env environment, opt Options) *client {
	transport := newTransport()
	c := &client{endpoint: env.endpoint, token: env.token, warn: opt.Warn,
		reach: cmp.Or(opt.reach, firstAnswer), transfer: newTransfer(opt)}
	if c.token != "" && c.endpoint.Scheme == "http" && !loopback(c.endpoint.Hostname()) &&
		c.warn != nil {
		c.warn("the Hugging Face token is sent to " + c.endpoint.Host + " without encryption")
	}
	c.content = &http.Client{Transport: transport, CheckRedirect: c.redirect}
	c.metadata = &http.Client{Transport: transport,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.Response.Header.Get(headerETag) != "" || !c.own(req.URL) {
				return http.ErrUseLastResponse
			}
			return c.redirect(req, via)
		}}
	return c
}

func (c *client) name() string { return "the Hub" }

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// own reports whether the address is the Hub's, so that it may see the token. The port counts:
// net/http's own rule would pass the token on to another port of the host, and to its subdomains,
// which content delivery networks use.
func (c *client) own(u *url.URL) bool {
	return u.Scheme == c.endpoint.Scheme && strings.EqualFold(u.Host, c.endpoint.Host)
}

func (c *client) redirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if req.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https" {
		return fmt.Errorf("redirect from https to %s", req.URL.Scheme)
	}
	req.Header.Del("Referer")
	if !c.own(req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// address is the endpoint with path elements added, each escaped.
func (c *client) address(elements ...string) string {
	var b strings.Builder
	b.WriteString(strings.TrimRight(c.endpoint.String(), "/"))
	for _, e := range elements {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String()
}

// repoPath is the elements of the repository's name.
func repoPath(repo string, rest ...string) []string {
	return append(strings.Split(repo, "/"), rest...)
}

func (c *client) request(ctx context.Context, method, address string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// modelInfo is what the Hub says about a revision.
type modelInfo struct {
	Commit string
	Files  []string
}

// firstAnswer is how long the first answer of the Hub is waited for, all attempts together: a user
// without a network learns it soon.
const firstAnswer = 4 * time.Second

var errNoAnswer = errors.New("no answer")

// hint says of an error that no network explains what can be done without one.
func (c *client) hint(ctx context.Context, err error) error {
	var status *statusError
	if errors.As(err, &status) || !unreachable(ctx, err) {
		return err
	}
	if long := (*url.Error)(nil); errors.As(err, &long) {
		err = long.Err
	}
	return fmt.Errorf("%w, and %s cannot be reached: %w (without a network: give a folder, or "+
		"set HF_HUB_OFFLINE=1 for what is in the cache; HF_ENDPOINT names a mirror)",
		ErrOffline, c.endpoint, err)
}

// modelInfo asks which commit a revision is and which files it has.
func (c *client) modelInfo(ctx context.Context, repo, revision string,
	attempts int) (modelInfo, error) {
	address := c.address(append([]string{"api", "models"},
		repoPath(repo, "revision", revision)...)...)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.reach, func() { cancel(errNoAnswer) })
	defer late.Stop()
	var info modelInfo
	var refusal error
	err := c.retry(ctx, attempts, func() (bool, error) {
		req, err := c.request(ctx, http.MethodGet, address)
		if err != nil {
			return false, err
		}
		res, err := c.content.Do(req)
		if err != nil {
			if ctx.Err() == nil {
				refusal = err
			}
			return false, err
		}
		late.Stop()
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return false, c.statusError(res)
		}
		body := newIdleReader(res.Body, c.idle)
		defer body.stop()
		info, err = readInfo(body)
		return false, err
	})
	if context.Cause(ctx) == errNoAnswer {
		err = refusal
		if err == nil {
			err = fmt.Errorf("%w within %v", errNoAnswer, c.reach)
		}
	}
	return info, err
}

func readInfo(body io.Reader) (modelInfo, error) {
	var answer struct {
		Commit   string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
		} `json:"siblings"`
	}
	limited := &io.LimitedReader{R: body, N: maxInfo}
	err := json.NewDecoder(limited).Decode(&answer)
	if limited.N == 0 {
		return modelInfo{}, permanent{fmt.Errorf("the Hub's list of files has more than %d bytes",
			maxInfo)}
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return modelInfo{}, permanent{fmt.Errorf("the Hub's answer is not the description of a "+
			"model: %w", err)}
	}
	if err != nil {
		return modelInfo{}, fmt.Errorf("the Hub's list of files: %w", err)
	}
	if !commitHash.MatchString(answer.Commit) {
		return modelInfo{}, permanent{fmt.Errorf("the Hub's answer has %.100q where a commit is "+
			"expected", answer.Commit)}
	}
	info := modelInfo{Commit: answer.Commit}
	for _, s := range answer.Siblings {
		info.Files = append(info.Files, s.Name)
	}
	return info, nil
}

// fileInfo is what the Hub says about a file.
type fileInfo struct {
	name string
	// the name of the blob in the cache; of the Hub's the SHA-256 of a large file, the git blob
	// hash of a small one
	etag string
	size int64 // -1 when the Hub does not say
	// sum makes the hash of which the content's is want, in hexadecimal; nil where none is known.
	sum  func() hash.Hash
	want string
}

// fileInfo asks for a file's size and hash.
func (c *client) fileInfo(ctx context.Context, repo, commit, name string) (fileInfo, error) {
	info := fileInfo{name: name, size: -1}
	err := c.retry(ctx, maxAttempts, func() (bool, error) {
		req, err := c.request(ctx, http.MethodHead, c.fileAddress(repo, commit, name))
		if err != nil {
			return false, err
		}
		res, err := c.metadata.Do(req)
		if err != nil {
			return false, err
		}
		res.Body.Close()
		redirected := res.StatusCode/100 == 3 && res.Header.Get("Location") != ""
		if res.StatusCode/100 != 2 && !redirected {
			return false, c.statusError(res)
		}
		if got := res.Header.Get(headerCommit); got != "" && got != commit {
			return false, permanent{fmt.Errorf("file %s: the Hub answers for commit %.100q "+
				"instead of %s", name, got, commit)}
		}
		info.etag = linkedETag(res.Header)
		if !safeETag(info.etag) {
			return false, permanent{fmt.Errorf("file %s: the Hub's ETag %.100q does not identify "+
				"a file", name, info.etag)}
		}
		if isHex(info.etag, sha256.Size) {
			info.sum, info.want = sha256.New, info.etag
		}
		size := res.Header.Get(headerSize)
		if size == "" && !redirected {
			size = res.Header.Get("Content-Length")
		}
		if n, err := strconv.ParseInt(size, 10, 64); err == nil && n >= 0 {
			info.size = n
		}
		return false, nil
	})
	return info, err
}

func (c *client) fileAddress(repo, commit, name string) string {
	return c.address(append(repoPath(repo, "resolve", commit), strings.Split(name, "/")...)...)
}

// linkedETag is the hash that the Hub gives a file.
func linkedETag(h http.Header) string {
	etag := h.Get(headerETag)
	if etag == "" {
		etag = h.Get("ETag")
	}
	return plainETag(etag)
}

// safeETag reports whether the ETag can be a file's name.
func safeETag(etag string) bool {
	if len(etag) < 8 || len(etag) > 128 {
		return false
	}
	for _, c := range []byte(etag) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' ||
			c == '_') {
			return false
		}
	}
	return true
}

// statusError explains an answer in the user's words. The Hub answers 401 for a repository that
// does not exist, so as not to tell private ones.
func (c *client) statusError(res *http.Response) error {
	e := &statusError{status: res.StatusCode, wait: retryAfter(res)}
	switch code := res.Header.Get(headerCode); {
	case !c.own(res.Request.URL):
		e.err = fmt.Errorf("%s answers %s", res.Request.URL.Host, res.Status)
	case code == "GatedRepo" && c.token == "":
		e.err = fmt.Errorf("%w: the repository is gated: accept its terms on its page on %s, "+
			"then set HF_TOKEN", ErrAccess, c.endpoint)
	case code == "GatedRepo":
		e.err = fmt.Errorf("%w: the repository is gated and HF_TOKEN belongs to a user who has "+
			"not been granted access: ask for it on its page on %s", ErrAccess, c.endpoint)
	case code == "RevisionNotFound":
		e.err = fmt.Errorf("%w: the repository has no such revision", ErrNotFound)
	case code == "EntryNotFound":
		e.err = fmt.Errorf("%w: the repository has no such file", ErrNotFound)
	case res.StatusCode == http.StatusUnauthorized && c.token == "":
		e.err = fmt.Errorf("%w: no such repository, or a private one: check the name, or set "+
			"HF_TOKEN", ErrNotFound)
	case res.StatusCode == http.StatusUnauthorized:
		e.err = fmt.Errorf("%w: no such repository, or HF_TOKEN is not valid or gives no access "+
			"to it", ErrNotFound)
	case res.StatusCode == http.StatusForbidden:
		e.err = fmt.Errorf("%w: HF_TOKEN is needed, or lacks the permission to read this "+
			"repository%s", ErrAccess, remark(res))
	case res.StatusCode == http.StatusNotFound:
		e.err = fmt.Errorf("%w: no such repository: check the name", ErrNotFound)
	default:
		e.err = fmt.Errorf("the Hub answers %s%s", res.Status, remark(res))
	}
	return e
}

// remark is what the Hub adds to an error, shortened.
func remark(res *http.Response) string {
	if m := res.Header.Get(headerMessage); m != "" {
		return fmt.Sprintf(" (%.300s)", m)
	}
	return ""
}
