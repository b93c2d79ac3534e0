package openai

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
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
	values := h.Values("Authorization")
	if len(values) != 1 {
		return false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(token)))
	match := 0
	for i := range k {
		match |= subtle.ConstantTimeCompare(k[i][:], digest[:])
	}
	return match == 1
}

// hostGuard stops web pages from reaching a server that is meant for its own machine or for named
// hosts: by DNS rebinding (a foreign name that resolves to this address) and by requests across
// sites.
type hostGuard struct {
	// allowed are host names; "*" is any.
	allowed []string
	// loopback is set when the listener is bound to a loopback address: then only names of the
	// machine itself reach it, beside those allowed.
	loopback bool
	cors     *cors
}

// check refuses a request whose Host is not ours or whose Origin is another site that CORS does not
// allow.
func (g *hostGuard) check(r *http.Request) *apiError {
	host := hostname(r.Host)
	if !g.knows(host) {
		return &apiError{status: http.StatusMisdirectedRequest, message: "host " +
			clip(strconv.Quote(host)) +
			" is not served here: name it in --allowed-hosts if it should be"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" || sameHost(origin, r.Host) || g.cors.allows(origin) {
		return nil
	}
	return &apiError{status: http.StatusForbidden, message: "origin " +
		clip(strconv.Quote(origin)) +
		" is not allowed: name it in --allowed-origins if it should be"}
}

func (g *hostGuard) knows(host string) bool {
	same := func(a string) bool { return a == "*" || strings.EqualFold(a, host) }
	if slices.ContainsFunc(g.allowed, same) {
		return true
	}
	if host == "" || isLoopbackName(host) { // a browser always names the host
		return true
	}
	return !g.loopback && len(g.allowed) == 0
}

// hostname strips the port and the brackets of an IPv6 address.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

// isLoopbackName reports whether a host name always means this machine.
func isLoopbackName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// isLoopbackAddr reports whether a listen address reaches this machine only.
func isLoopbackAddr(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && isLoopbackName(host)
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// cors answers browsers that ask whether pages of other sites may call; without origins none may.
type cors struct {
	origins, methods, headers []string
	credentials               bool
}

func (c *cors) allows(origin string) bool {
	return slices.Contains(c.origins, "*") || slices.Contains(c.origins, origin)
}

// headersFor adds the headers for an allowed origin.
func (c *cors) headersFor(h http.Header, origin string) {
	if len(c.origins) == 0 {
		return
	}
	h.Add("Vary", "Origin")
	if origin == "" || !c.allows(origin) {
		return
	}
	if slices.Contains(c.origins, "*") && !c.credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
	}
	if c.credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}

// preflight answers an OPTIONS request of a browser and reports whether it was one.
func (c *cors) preflight(w http.ResponseWriter, r *http.Request) bool {
	asked := r.Header.Get("Access-Control-Request-Method")
	if r.Method != http.MethodOptions || asked == "" || !c.allows(r.Header.Get("Origin")) {
		return false
	}
	h := w.Header()
	methods, headers := strings.Join(c.methods, ", "), strings.Join(c.headers, ", ")
	if len(c.methods) == 0 || slices.Contains(c.methods, "*") {
		methods = "GET, POST, OPTIONS"
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
