package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
)

// keyring holds the digests of the API keys: comparing digests takes the same time whatever was
// presented.
type keyring [][sha256.Size]byte

func newKeyring(keys []string) keyring {
	var k keyring
	for _, key := range keys {
		if key != "" {
			k = append(k, sha256.Sum256([]byte(key)))
		}
	}
	return k
}

// admits reports whether the request carries one of the keys in exactly one Authorization header.
// Without keys every request is admitted.
func (k keyring) admits(h http.Header) bool {
	if len(k) == 0 {
		return true
	}
	_, found := k.find(h)
	return found
}

// Credentials are the headers by which a request has its key: another one with them is of the same
// client.
func Credentials(h http.Header) http.Header {
	own := http.Header{}
	for _, name := range []string{headerBearer, headerKey} {
		if v := h.Values(name); len(v) > 0 {
			own[name] = v
		}
	}
	return own
}

// The headers of keys.
const (
	headerBearer = "Authorization"
	headerKey    = "X-Api-Key"
)

// presented is the key that a request carries: OpenAI's clients have it in Authorization, and
// Anthropic's in X-Api-Key, which counts where the other is not there.
func presented(h http.Header) (token string, found bool) {
	values, keys := h.Values(headerBearer), h.Values(headerKey)
	switch {
	case len(values) == 0 && len(keys) == 1:
		return keys[0], true
	case len(values) != 1:
		return "", false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	return token, found && strings.EqualFold(scheme, "Bearer")
}

// find returns the number of the key that the request carries.
func (k keyring) find(h http.Header) (n int, found bool) {
	token, found := presented(h)
	if !found {
		return 0, false
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(token)))
	match := 0
	for i := range k {
		equal := subtle.ConstantTimeCompare(k[i][:], digest[:])
		n = subtle.ConstantTimeSelect(equal, i, n)
		match |= equal
	}
	return n, match == 1
}

// cors answers browsers that ask whether pages of other sites may call: those of the origins
// listed, and pages of this machine that call it by a name of its own (hostGuard.local).
type cors struct {
	origins, methods, headers []string
	credentials               bool
}

func (c *cors) allows(origin string) bool {
	return slices.Contains(c.origins, "*") || slices.Contains(c.origins, origin)
}

// headersFor adds the headers for an allowed origin; local says that it is a page of this machine.
// Credentials are for origins that were listed.
func (c *cors) headersFor(h http.Header, origin string, local bool) {
	listed := c.allows(origin)
	if len(c.origins) > 0 || local {
		h.Add("Vary", "Origin")
	}
	if origin == "" || !listed && !local {
		return
	}
	if slices.Contains(c.origins, "*") && !c.credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
	}
	if c.credentials && listed {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}

// preflight answers an OPTIONS request of a browser and reports whether it was one.
func (c *cors) preflight(w http.ResponseWriter, r *http.Request, local bool) bool {
	asked := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || asked == "" ||
		!c.allows(r.Header.Get("Origin")) && !local {
		return false
	}
	h := w.Header()
	methods, headers := strings.Join(c.methods, ", "), strings.Join(c.headers, ", ")
	if len(c.methods) == 0 || slices.Contains(c.methods, "*") {
		methods = "GET, POST, DELETE, OPTIONS"
	}
	if len(c.headers) == 0 || slices.Contains(c.headers, "*") {
		headers = r.Header.Get("Access-Control-Request-Headers")
	}
	h.Set("Access-Control-Allow-Methods", methods)
	if headers != "" {
		h.Set("Access-Control-Allow-Headers", headers)
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
