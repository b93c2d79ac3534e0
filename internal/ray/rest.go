package ray

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// REST reads the state of a cluster from its dashboard (ray[default], the state API "v0"). The
// dashboard polls: what it says is a second old, and for life and death the Client is the one to
// ask. Today the program asks for versions only; the tables are what tests compare with, and what a
// check of a cluster is to read.
type REST struct {
	base  string
	token string
	http  *http.Client
}

// RESTOptions say where the dashboard is.
type RESTOptions struct {
	// Dashboard is "host:port" or a URL; Cluster.DashboardURL is one.
	Dashboard string
	// Env is where the token is looked for (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, HOME); nil means
	// this process's environment.
	Env []string
	// Client sends the requests; nil means one with a timeout of restTimeout.
	Client *http.Client
}

const (
	restTimeout = 30 * time.Second
	// restLimit is the most entries that the state API gives.
	restLimit = 10_000
	// maxBody bounds an answer, in bytes.
	maxBody = 64 << 20
)

// NewREST makes a client; it sends nothing yet.
func NewREST(options RESTOptions) *REST {
	base := strings.TrimRight(options.Dashboard, "/")
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	if options.Env == nil {
		options.Env = os.Environ()
	}
	if options.Client == nil {
		options.Client = &http.Client{Timeout: restTimeout}
	}
	return &REST{base: base, token: token(options.Env), http: options.Client}
}

// StatusError is an answer of the dashboard that is not 200.
type StatusError struct {
	Path string
	Code int
	// Message is the beginning of the body.
	Message string
}

// Error names the path and the status; for a refused token it also says what to do.
func (e *StatusError) Error() string {
	s := fmt.Sprintf("ray dashboard %s: %d %s", e.Path, e.Code, http.StatusText(e.Code))
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.refused() {
		s += ": " + ErrAuth.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrAuth) true for 401 (no token) and 403 (a wrong one).
func (e *StatusError) Is(target error) bool { return target == ErrAuth && e.refused() }

func (e *StatusError) refused() bool {
	return e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden
}

// DashboardVersion is the answer of /api/version.
type DashboardVersion struct {
	Ray     string `json:"ray_version"`
	Commit  string `json:"ray_commit"`
	Session string `json:"session_name"`
}

// NodeState is a node of the state API. State is "ALIVE" or "DEAD".
type NodeState struct {
	ID        string             `json:"node_id"`
	IP        string             `json:"node_ip"`
	Head      bool               `json:"is_head_node"`
	State     string             `json:"state"`
	Message   string             `json:"state_message"`
	Name      string             `json:"node_name"`
	Resources map[string]float64 `json:"resources_total"`
}

// GroupState is a placement group of the state API; removed ones are listed too.
type GroupState struct {
	ID         string        `json:"placement_group_id"`
	Name       string        `json:"name"`
	CreatorJob string        `json:"creator_job_id"`
	State      string        `json:"state"`
	Bundles    []BundleState `json:"bundles"`
}

// BundleState is a bundle of the state API. NodeID is empty while it has no place.
type BundleState struct {
	ID struct {
		Index int `json:"bundle_index"`
	} `json:"bundle_id"`
	Resources map[string]float64 `json:"unit_resources"`
	NodeID    string             `json:"node_id"`
}

// ActorState is an actor of the state API; dead ones are listed too. State is DEPENDENCIES_UNREADY,
// PENDING_CREATION, ALIVE, RESTARTING or DEAD.
type ActorState struct {
	ID        string             `json:"actor_id"`
	Class     string             `json:"class_name"`
	State     string             `json:"state"`
	Job       string             `json:"job_id"`
	Name      string             `json:"name"`
	NodeID    string             `json:"node_id"`
	PID       int                `json:"pid"`
	Namespace string             `json:"ray_namespace"`
	Group     string             `json:"placement_group_id"`
	Resources map[string]float64 `json:"required_resources"`
}

// Version asks for the version of the cluster's Ray.
func (r *REST) Version(ctx context.Context) (DashboardVersion, error) {
	var v DashboardVersion
	err := r.get(ctx, "/api/version", nil, &v)
	return v, err
}

// Nodes lists the nodes in a state, or all if it is empty.
func (r *REST) Nodes(ctx context.Context, state string) ([]NodeState, error) {
	return list[NodeState](ctx, r, "nodes", state)
}

// PlacementGroups lists the groups in a state, or all if it is empty.
func (r *REST) PlacementGroups(ctx context.Context, state string) ([]GroupState, error) {
	return list[GroupState](ctx, r, "placement_groups", state)
}

// Actors lists the actors in a state, or all if it is empty.
func (r *REST) Actors(ctx context.Context, state string) ([]ActorState, error) {
	return list[ActorState](ctx, r, "actors", state)
}

// list reads one table of the state API. More entries than restLimit are an error.
func list[T any](ctx context.Context, r *REST, table, state string) ([]T, error) {
	query := url.Values{"limit": {fmt.Sprint(restLimit)}, "detail": {"1"}}
	if state != "" {
		query.Set("filter_keys", "state")
		query.Set("filter_predicates", "=")
		query.Set("filter_values", state)
	}
	var answer struct {
		OK      bool   `json:"result"`
		Message string `json:"msg"`
		Data    struct {
			Result struct {
				Filtered int `json:"num_filtered"`
				Result   []T `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	path := "/api/v0/" + table
	if err := r.get(ctx, path, query, &answer); err != nil {
		return nil, err
	}
	if !answer.OK {
		return nil, fmt.Errorf("ray dashboard %s: %s", path, answer.Message)
	}
	found := answer.Data.Result
	if found.Filtered > len(found.Result) {
		return nil, fmt.Errorf("ray dashboard %s: only %d of %d entries were given", path,
			len(found.Result), found.Filtered)
	}
	return found.Result, nil
}

func (r *REST) get(ctx context.Context, path string, query url.Values, result any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path+"?"+query.Encode(),
		nil)
	if err != nil {
		return fmt.Errorf("ray dashboard %s: %w", r.base, err)
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := r.http.Do(request)
	if err != nil {
		return fmt.Errorf("ray dashboard: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return fmt.Errorf("ray dashboard %s: %w", path, err)
	}
	if len(body) > maxBody {
		return fmt.Errorf("ray dashboard %s: the answer is longer than %d bytes", path, maxBody)
	}
	if response.StatusCode != http.StatusOK {
		text := strings.TrimSpace(string(body[:min(len(body), 300)]))
		return &StatusError{Path: path, Code: response.StatusCode, Message: text}
	}
	if err := json.Unmarshal(body, result); err != nil {
		return fmt.Errorf("ray dashboard %s: the answer is not what the state API gives: %w", path,
			err)
	}
	return nil
}
