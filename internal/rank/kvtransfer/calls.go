package kvtransfer

// Open are the arguments of the call that starts a rank's agent.
type Open struct {
	Shape Shape `json:"shape"`
	// Host is where it listens, "" for the rank's own address; Port is the first rank's, 0 for any.
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
	// Plan is the last plan of earlier groups.
	Plan uint64 `json:"plan"`
	// Remote is Options.Remote.
	Remote bool `json:"remote,omitempty"`
}

// Fetched is the result of a rank's Fetch.
type Fetched struct {
	// Error is "" when all blocks were fetched.
	Error string `json:"error,omitempty"`
	Moved
	// Began and Ended are in nanoseconds since 1970, by the clock of the rank's host.
	Began int64 `json:"began"`
	Ended int64 `json:"ended"`
}
