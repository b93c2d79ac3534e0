package ray

import (
	"context"
	"time"
)

// States of a placement group, as Ray names them.
const (
	GroupPending      = "PENDING"
	GroupPrepared     = "PREPARED"
	GroupCreated      = "CREATED"
	GroupRescheduling = "RESCHEDULING"
	GroupRemoved      = "REMOVED"
)

// SchedulingInfeasible is the scheduling state of a pending group that no node of the cluster,
// however idle, could hold. Ray goes on waiting for such a node.
const SchedulingInfeasible = "INFEASIBLE"

// GroupSpec describes a placement group.
type GroupSpec struct {
	// Name is unique in the namespace, or empty.
	Name string `json:"name,omitempty"`
	// Bundles are the resources of each bundle, by name.
	Bundles []map[string]float64 `json:"bundles"`
	// Strategy is PACK, SPREAD, STRICT_PACK or STRICT_SPREAD; empty means PACK.
	Strategy string `json:"strategy,omitempty"`
}

// Group is a placement group as Ray sees it now.
type Group struct {
	// ID is hexadecimal.
	ID       string `json:"id"`
	Name     string `json:"name"`
	Strategy string `json:"strategy"`
	// State is one of the Group… constants.
	State string `json:"state"`
	// SchedulingState says why a group is pending: INFEASIBLE, NO_RESOURCES, QUEUED, …
	SchedulingState string `json:"scheduling_state"`
	// Bundles are in order of their index.
	Bundles []Bundle `json:"bundles"`
}

// Bundle is one bundle of a group. NodeID is empty while it has no place.
type Bundle struct {
	Index     int                `json:"index"`
	NodeID    string             `json:"node_id"`
	Resources map[string]float64 `json:"resources"`
}

// CreateGroup asks for a group and returns its id at once; WaitGroup waits for its place. Close
// removes it.
func (c *Client) CreateGroup(ctx context.Context, spec GroupSpec) (string, error) {
	var out struct {
		ID string `json:"id"`
	}
	err := c.call(ctx, "group_create", spec, &out)
	return out.ID, err
}

// AdoptGroup makes a group of another job usable here: by its id, which works from any job and
// namespace, or by its name in the client's namespace. An adopted group is never removed by this
// client.
func (c *Client) AdoptGroup(ctx context.Context, idOrName string) (Group, error) {
	var g Group
	err := c.call(ctx, "group_adopt", map[string]string{"group": idOrName}, &g)
	return g, err
}

// WaitGroup waits until all bundles of the group have their place; false means that the time is
// over. A group that is removed meanwhile is an *Error of class "PlacementGroupRemoved". Right
// after an older group was removed its resources may take up to a second to come back.
func (c *Client) WaitGroup(ctx context.Context, id string, timeout time.Duration) (bool, error) {
	var out struct {
		Ready bool `json:"ready"`
	}
	args := struct {
		ID      string  `json:"id"`
		Timeout float64 `json:"timeout"`
	}{id, timeout.Seconds()}
	err := c.call(ctx, "group_wait", args, &out)
	return out.Ready, err
}

// Group looks a created or adopted group up.
func (c *Client) Group(ctx context.Context, id string) (Group, error) {
	var g Group
	err := c.call(ctx, "group_get", groupArgs{id}, &g)
	return g, err
}

// RemoveGroup removes a group that this client has made, and every actor in it. An adopted group
// is refused.
func (c *Client) RemoveGroup(ctx context.Context, id string) error {
	return c.call(ctx, "group_remove", groupArgs{id}, nil)
}

type groupArgs struct {
	ID string `json:"id"`
}
