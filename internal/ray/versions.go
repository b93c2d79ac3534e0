package ray

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// dashboardPort is where a head's dashboard listens unless told otherwise.
const dashboardPort = "8265"

// withVersions says what a failed connect may mean: Ray needs the same version at both ends, and
// fails in words that name none when they are far apart. The cluster's is asked of its dashboard,
// at RAY_API_SERVER_ADDRESS or at the head's usual port; no answer is no answer.
func (c *Client) withVersions(ctx context.Context, address string, err error) error {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, ErrAuth) || e.Unreachable() ||
		e.Class == "ValueError" || strings.Contains(err.Error(), "ersion mismatch") {
		return err
	}
	if strings.Contains(err.Error(), "No node info found") {
		return fmt.Errorf("no node of the cluster at %s runs where this program can see it (nor "+
			"has the address of --node-ip, if given): run it on one: %w", address, err)
	}
	dashboard := lookup(c.options.Env, "RAY_API_SERVER_ADDRESS")
	if host, _, splitErr := net.SplitHostPort(address); dashboard == "" && splitErr == nil {
		dashboard = net.JoinHostPort(host, dashboardPort)
	}
	ours := c.Hello()
	if dashboard != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		there, restErr := NewREST(RESTOptions{Dashboard: dashboard,
			Env: c.options.Env}).Version(ctx)
		if restErr == nil && there.Ray == ours.Ray {
			return err
		}
		if restErr == nil {
			return fmt.Errorf("the cluster at %s runs Ray %s, but %s has Ray %s (Python %s): "+
				"give the Python that has Ray %s with --ray-python: %w", address, there.Ray,
				c.python, ours.Ray, ours.Python, there.Ray, err)
		}
	}
	// Of versions far apart 2.35.0 says one of these, without a reason.
	if e.Class != "ConnectionError" && e.Class != "RuntimeError" {
		return err
	}
	return fmt.Errorf("%w (%s has Ray %s and Python %s: the cluster must have the same)", err,
		c.python, ours.Ray, ours.Python)
}
