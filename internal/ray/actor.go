package ray

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// ActorSpec describes the actor of one rank.
type ActorSpec struct {
	// Rank names the actor in all other operations; it must be free.
	Rank int `json:"rank"`
	// Group and Bundle say where; an empty Group leaves the place to Ray.
	Group  string `json:"group,omitempty"`
	Bundle int    `json:"bundle"`
	// Name is unique in the namespace, or empty.
	Name string `json:"name,omitempty"`
	// CPUs, GPUs and Resources are what Ray reserves for the actor; they must fit into its bundle.
	CPUs      float64            `json:"cpus"`
	GPUs      float64            `json:"gpus"`
	Resources map[string]float64 `json:"resources,omitempty"`
	// RuntimeEnv is a JSON object; any content makes Ray start Python twice for the actor.
	RuntimeEnv json.RawMessage `json:"runtime_env,omitempty"`
}

// FactsRequest says what the actors are asked besides who and where they are.
type FactsRequest struct {
	// EnvDigests are names of the driver's environment with the SHA-256 of their values in
	// hexadecimal (EnvDigest).
	EnvDigests map[string]string `json:"env_digests,omitempty"`
	// DeviceKey is Ray's name for the accelerators whose ids are wanted ("GPU", "NPU", …), or
	// empty.
	DeviceKey string `json:"device_key,omitempty"`
	// SHA256 is the hash of the binary, in hexadecimal, that is looked for on the nodes, or empty.
	SHA256 string `json:"sha256,omitempty"`
	// CacheHint is a path where the binary may be, besides the cache: the driver's own path of it.
	CacheHint string `json:"cache_hint,omitempty"`
}

// Facts is what an actor knows about its place.
type Facts struct {
	Rank     int    `json:"rank"`
	NodeID   string `json:"node_id"`
	NodeIP   string `json:"node_ip"`
	Hostname string `json:"hostname"`
	// PID is the actor's process, in its own PID namespace.
	PID     int    `json:"pid"`
	ActorID string `json:"actor_id"`
	// DeviceIDs are the accelerators that Ray gave to the actor, sorted.
	DeviceIDs []string `json:"device_ids"`
	// CPUs is how many the process may use, by its affinity and its cgroup's quota.
	CPUs int `json:"cpus"`
	// Differs are the names of EnvDigests that the node sets to another value, sorted.
	Differs []string `json:"differs"`
	// HasBinary is the path of an executable file with the hash asked for, or empty.
	HasBinary string `json:"has_binary"`
	// Niceness is 15 for actors unless the cluster says otherwise.
	Niceness int    `json:"niceness"`
	Arch     string `json:"arch"`
	Python   string `json:"python"`
	Ray      string `json:"ray"`
}

// Installed says where the binary is for a rank; Cached is true if it was there already.
type Installed struct {
	Rank   int    `json:"rank"`
	Path   string `json:"path"`
	Cached bool   `json:"cached"`
}

// StartSpec describes the worker process of one rank.
type StartSpec struct {
	Rank int    `json:"rank"`
	Path string `json:"path"`
	// Args are the arguments after the program's name.
	Args []string `json:"args,omitempty"`
	// The worker's environment is the node's, with DefaultEnv where a name is not set, then
	// SetEnv, then without UnsetEnv. RAY_AUTH_* is always taken out, and EAGLERAY_PARENT_PID is
	// always set to the actor's pid.
	SetEnv     map[string]string `json:"set_env,omitempty"`
	DefaultEnv map[string]string `json:"default_env,omitempty"`
	UnsetEnv   []string          `json:"unset_env,omitempty"`
	// Stdin is written to the worker's standard input, which then stays open for as long as the
	// actor lives: its end means that the worker must end too.
	Stdin []byte `json:"stdin,omitempty"`
}

// Started is a worker process; PID is in the PID namespace of its actor.
type Started struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
}

// Exit is the end of a worker that was started. Code and Signal ("SIGKILL") are how the process
// ended; if the actor was lost with it they are nil and empty, and Class and Reason are Ray's
// exception.
type Exit struct {
	// Rank and PID are those of Started. The news of a worker may be ahead of StartWorkers'
	// answer, and news that was not read yet outlives KillActors: the PID tells which worker
	// of the rank it was.
	Rank, PID     int
	Code          *int
	Signal        string
	Class, Reason string
	// Stderr are the last lines that the worker wrote to its standard error, if its actor could
	// tell them.
	Stderr []string
	// At is when the news arrived.
	At time.Time
}

// CreateActors submits all actors and waits for none of them; what becomes of them, Facts tells.
// Errors that Ray finds at once, such as a wrong bundle index or a name that is taken, are
// RankErrors; the other ranks are created.
func (c *Client) CreateActors(ctx context.Context, specs []ActorSpec) error {
	var out rankResults[struct{}]
	if err := c.call(ctx, "actors_create", map[string]any{"specs": listed(specs)},
		&out); err != nil {
		return err
	}
	return rankErrors("create actor", out.Errors)
}

// Facts asks the actors who and where they are, which waits for them to start. It returns those
// that answered, in the order of ranks, and RankErrors for the others: the exception that ended
// an actor, or class "Pending" if it has not started by ctx's deadline, or by two seconds after
// another rank has failed.
func (c *Client) Facts(ctx context.Context, ranks []int, request FactsRequest) ([]Facts, error) {
	var out rankResults[Facts]
	args := struct {
		Ranks   []int        `json:"ranks"`
		Request FactsRequest `json:"request"`
	}{listed(ranks), request}
	if err := c.call(ctx, "actors_facts", args, &out); err != nil {
		return nil, err
	}
	return out.ordered(ranks), rankErrors("facts", out.Errors)
}

// Install brings a file to the nodes of the ranks through Ray's object store and makes it
// executable, in a cache whose names are hashes: per user, $XDG_CACHE_HOME or ~/.cache, else the
// temporary folder. sha256Hex is the file's hash in hexadecimal and is verified on both sides.
// Failed ranks are RankErrors.
func (c *Client) Install(ctx context.Context, ranks []int, file, sha256Hex string) ([]Installed,
	error) {
	var out rankResults[Installed]
	args := struct {
		Ranks  []int  `json:"ranks"`
		File   string `json:"file"`
		SHA256 string `json:"sha256"`
	}{listed(ranks), file, sha256Hex}
	if err := c.call(ctx, "actors_install", args, &out); err != nil {
		return nil, err
	}
	return out.ordered(ranks), rankErrors("install", out.Errors)
}

// StartWorkers starts one worker process under each actor; from then on Exits tells of its end.
// Ranks whose worker could not be started are RankErrors; the others run.
func (c *Client) StartWorkers(ctx context.Context, specs []StartSpec) ([]Started, error) {
	var out rankResults[Started]
	ranks := make([]int, len(specs))
	for i, s := range specs {
		ranks[i] = s.Rank
	}
	if err := c.call(ctx, "actors_start", map[string]any{"specs": listed(specs)},
		&out); err != nil {
		return nil, err
	}
	return out.ordered(ranks), rankErrors("start worker", out.Errors)
}

// Input is what the worker of a rank is given on its standard input.
type Input struct {
	Rank  int    `json:"rank"`
	Stdin []byte `json:"stdin"`
}

// FeedWorkers writes more to the standard input of workers that run, after their StartSpec.Stdin.
// Ranks without a worker that runs are RankErrors.
func (c *Client) FeedWorkers(ctx context.Context, inputs []Input) error {
	var out rankResults[struct{}]
	if err := c.call(ctx, "actors_feed", map[string]any{"inputs": listed(inputs)},
		&out); err != nil {
		return err
	}
	return rankErrors("feed worker", out.Errors)
}

// StopWorkers ends the worker processes of the ranks, first with SIGTERM and the end of their
// standard input, after the grace with SIGKILL. The actors live on; Exits tells of the ends. It is
// for a new group of workers in the same actors.
func (c *Client) StopWorkers(ctx context.Context, ranks []int, grace time.Duration) error {
	var out rankResults[struct{}]
	args := struct {
		Ranks []int   `json:"ranks"`
		Grace float64 `json:"grace"`
	}{listed(ranks), grace.Seconds()}
	if err := c.call(ctx, "actors_stop", args, &out); err != nil {
		return err
	}
	return rankErrors("stop worker", out.Errors)
}

// KillActors ends the actors and their workers at once and frees the ranks. No Exit is reported
// for them. Unknown ranks are ignored. It is for recovery in an adopted placement group,
// which is kept while its actors are replaced.
func (c *Client) KillActors(ctx context.Context, ranks []int) error {
	return c.call(ctx, "actors_kill", map[string]any{"ranks": listed(ranks)}, nil)
}

// rankResults is the answer to an operation on several ranks.
type rankResults[T any] struct {
	Results map[int]T            `json:"results"`
	Errors  map[int]*frame.Fault `json:"errors"`
}

// ordered returns the results in the order of ranks.
func (r rankResults[T]) ordered(ranks []int) []T {
	out := make([]T, 0, len(r.Results))
	for _, rank := range ranks {
		if v, ok := r.Results[rank]; ok {
			out = append(out, v)
		}
	}
	return out
}

// listed is a list that JSON has as [], not null, when it is empty.
func listed[T any](list []T) []T { return append([]T{}, list...) }

// Ranks returns the ranks of the failed, in order.
func (e RankErrors) Ranks() []int { return slices.Sorted(maps.Keys(e)) }

// EnvDigest is the digest of an environment variable's value in FactsRequest.EnvDigests.
func EnvDigest(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}
