package ray

import (
	"context"
	"encoding/json"
)

// ConnectOptions say which cluster to join, and how.
type ConnectOptions struct {
	// Address is the GCS address "host:port" of the cluster. Empty means RAY_ADDRESS, else a
	// cluster that runs on this machine, else a new local one.
	Address string `json:"address,omitempty"`
	// Namespace is the Ray namespace of actor and group names; empty means an anonymous one.
	Namespace string `json:"namespace,omitempty"`
	// NodeIP picks the node that the engine belongs to, where one machine runs several. Without
	// it Ray chooses: 2.35.0 takes the node started last, newer versions the head.
	NodeIP string `json:"node_ip,omitempty"`
	// RuntimeEnv is the job's runtime environment, a JSON object. Any content makes Ray start
	// Python twice for every actor.
	RuntimeEnv json.RawMessage `json:"runtime_env,omitempty"`
	// LocalResources is what a local cluster gets if one is started; ignored otherwise.
	LocalResources LocalResources `json:"local"`
}

// LocalResources are the resources of a local cluster. Nil means what Ray finds on the machine.
type LocalResources struct {
	NumCPUs   *float64           `json:"num_cpus,omitempty"`
	NumGPUs   *float64           `json:"num_gpus,omitempty"`
	Resources map[string]float64 `json:"resources,omitempty"`
}

// Cluster is the cluster that the client has joined.
type Cluster struct {
	// NodeID and NodeIP are the engine's own node; NodeID is hexadecimal.
	NodeID string `json:"node_id"`
	NodeIP string `json:"node_ip"`
	JobID  string `json:"job_id"`
	// GCSAddress is "host:port".
	GCSAddress string `json:"gcs_address"`
	Namespace  string `json:"namespace"`
	// DashboardURL is "host:port" or empty if the cluster has no dashboard.
	DashboardURL string `json:"dashboard_url"`
	// Started is true if the cluster is a local one that ends with this client.
	Started bool `json:"started"`
}

// Node is one node that the cluster has or had.
type Node struct {
	// ID is hexadecimal; IP is the address that Ray knows the node by.
	ID       string `json:"id"`
	IP       string `json:"ip"`
	Hostname string `json:"hostname"`
	// Alive is false for a node that has left; Ray keeps such nodes in the list.
	Alive bool `json:"alive"`
	// Resources is everything the node has, by name ("CPU", "GPU", …); empty for one that has left.
	Resources map[string]float64 `json:"resources"`
	// Free is an upper bound on what a new group can get there: Ray's public API has free
	// resources per cluster only, so it is Resources less the bundles that placed groups hold,
	// and at most what is free on the whole cluster. Actors and tasks outside groups are seen
	// only in the second bound.
	Free map[string]float64 `json:"free"`
}

// Connect joins the cluster; it must be the first operation and succeeds once. A cluster that
// wants a token gets the one of RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token, also if
// RAY_AUTH_MODE is not set. A refused token is an error that wraps ErrAuth; Ray takes about 20
// seconds to tell. An address where nothing listens is an error after five seconds.
func (c *Client) Connect(ctx context.Context, options ConnectOptions) (Cluster, error) {
	return c.connect(ctx, options)
}

// Sample is the value of a series, which Ray shows as a gauge with the prefix "ray_".
type Sample struct {
	Name   string            `json:"name"`
	Help   string            `json:"help"`
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// ShowMetrics has Ray show samples where it shows its own metrics: at the metrics port of the
// engine's node. They stay until they are shown again, or the client ends.
func (c *Client) ShowMetrics(ctx context.Context, samples []Sample) error {
	return c.call(ctx, "metrics", map[string]any{"samples": samples}, nil)
}

// Nodes lists the nodes of the cluster, those that have left included.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	nodes, _, err := c.Resources(ctx)
	return nodes, err
}

// LostNodes returns those of the nodes that Ray has lost, and those whose raylet accepts no
// connection: Ray takes 12 s and more to notice that, by its health checks. An id that the cluster
// does not know is a lost node's.
func (c *Client) LostNodes(ctx context.Context, ids []string) ([]string, error) {
	var out struct {
		Lost []string `json:"lost"`
	}
	err := c.call(ctx, "nodes_lost", map[string]any{"ids": listed(ids)}, &out)
	return out.Lost, err
}

// Resources lists the nodes, and what is free on the whole cluster by resource.
func (c *Client) Resources(ctx context.Context) (nodes []Node, available map[string]float64,
	err error) {
	var out struct {
		Nodes     []Node             `json:"nodes"`
		Available map[string]float64 `json:"available"`
	}
	err = c.call(ctx, "nodes", nil, &out)
	return out.Nodes, out.Available, err
}
