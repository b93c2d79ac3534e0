package kvtransfer

// Open asks a rank for an agent.
type Open struct {
	Shape Shape `json:"shape"`
	// Host is where it listens, "" for the rank's own address; Port is the first rank's, 0 for any.
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
	// Plan is the last one of groups before.
	Plan uint64 `json:"plan"`
	// Remote is Options.Remote.
	Remote bool `json:"remote,omitempty"`
}

// Fetched is what became of a rank's Fetch.
type Fetched struct {
	// Error is "" when everything is there.
	Error string `json:"error,omitempty"`
	Moved
	// Began and Ended are in nanoseconds since 1970, by the clock of the rank's host.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
}
