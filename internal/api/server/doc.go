// Package server is the transport of the API over HTTP: listeners, TLS, connections, hosts, keys,
// limits, bodies, deadlines, streams of events, and which handler a request is for. It knows
// neither what is asked nor the engine; what answers adds its routes (Server.Add).
package server
