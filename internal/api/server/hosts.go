package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// hostGuard stops web pages from reaching a server that is meant for its own machine or for named
// hosts: by DNS rebinding (a foreign name that resolves to this address) and by requests across
// sites.
//
// A name that its owner can let resolve to this address is never taken for the machine's: only
// localhost, the machine's host name and literal addresses of it are.
type hostGuard struct {
	// allowed are host names; "*" is any.
	allowed []string
	// loopback is set when the listener is bound to a loopback address: then only names of the
	// machine itself reach it, beside those allowed.
	loopback bool
	machine  *machineNames
	cors     *cors
}

// check refuses a request whose Host is not ours or whose Origin is another site that may not call.
func (g *hostGuard) check(r *http.Request) *wire.Error {
	host := hostname(r.Host)
	if !g.knows(host) {
		return &wire.Error{Status: http.StatusMisdirectedRequest, Message: "host " +
			wire.Clip(strconv.Quote(host)) + " is not served here: --allowed-hosts " +
			wire.Clip(host) + " would have it answered"}
	}
	origin := r.Header.Get("Origin")
	if origin == "" || sameHost(origin, r.Host) || g.cors.allows(origin) || g.local(r) {
		return nil
	}
	what := ""
	if origin == "null" {
		what = ", that of a file and of a page without a site,"
	}
	return &wire.Error{Status: http.StatusForbidden, Message: "origin " +
		wire.Clip(strconv.Quote(origin)) + what + " is not allowed: --allowed-origins " +
		wire.Clip(origin) + " would have it answered"}
}

func (g *hostGuard) knows(host string) bool {
	same := func(a string) bool { return a == "*" || strings.EqualFold(a, host) }
	if slices.ContainsFunc(g.allowed, same) {
		return true
	}
	if host == "" || isLoopbackName(host) { // a browser always names the host
		return true
	}
	return !g.loopback && len(g.allowed) == 0 || g.machine.has(host)
}

// local reports whether a page of this machine calls this machine from another port: it comes from
// a loopback address, and reaches a server bound to one or called by the name of one.
func (g *hostGuard) local(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	u, err := url.Parse(origin)
	if sameHost(origin, r.Host) { // one site: it has no need to ask
		return false
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !isLoopbackName(u.Hostname()) {
		return false
	}
	return g.loopback || isLoopbackName(hostname(r.Host))
}

// hostname strips the port and the brackets of an IPv6 address.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

// isLoopbackName reports whether a host name always means the machine of the client that uses it:
// the loopback names and addresses, and the unspecified address, which is one of them to a client.
func isLoopbackName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	return err == nil && (addr.IsLoopback() || addr.IsUnspecified())
}

// isLoopbackAddr reports whether a listen address reaches this machine only.
func isLoopbackAddr(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip, _ := netip.ParseAddr(host)
	return err == nil && isLoopbackName(host) && !ip.IsUnspecified()
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// machineNames are what this machine is called beside its loopback names.
type machineNames struct {
	// names are lower case.
	names []string
	// addresses returns those of the network interfaces, which come and go.
	addresses func() []netip.Addr
}

// thisMachine is the host name, its first label, that label as multicast DNS has it, and the name
// the server was told to listen on.
func thisMachine(listenOn string) *machineNames {
	m := &machineNames{addresses: interfaceAddresses}
	add := func(name string) {
		if name != "" {
			m.names = append(m.names, strings.ToLower(name))
		}
	}
	add(listenOn)
	if name, err := os.Hostname(); err == nil && name != "" {
		label, _, _ := strings.Cut(name, ".")
		add(name)
		add(label)
		add(label + ".local")
	}
	return m
}

func (m *machineNames) has(host string) bool {
	host = strings.TrimSuffix(host, ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return slices.Contains(m.addresses(), addr.Unmap().WithZone(""))
	}
	return slices.Contains(m.names, strings.ToLower(host))
}

func interfaceAddresses() []netip.Addr {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var list []netip.Addr
	for _, a := range found {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, prefix.Addr().Unmap().WithZone(""))
		}
	}
	return list
}
