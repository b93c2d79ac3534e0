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

// withVersions says what a failed connect may mean: Ray needs the same version at both ends, and fails in words that
// name none when they are far apart. The cluster's is asked of its dashboard, at RAY_API_SERVER_ADDRESS or at the
// head's usual port; no answer is no answer.
func (c *Client) withVersions(ctx context.Context, address string, err error) error {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, ErrAuth) || e.Unreachable() || strings.Contains(err.Error(), "ersion mismatch") {
		return err
	}
	dashboard := lookup(c.options.Env, "RAY_API_SERVER_ADDRESS")
	if host, _, splitErr := net.SplitHostPort(address); dashboard == "" && splitErr == nil {
		dashboard = net.JoinHostPort(host, dashboardPort)
	}
	ours := c.Hello()
	if dashboard != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		there, restErr := NewREST(RESTOptions{Dashboard: dashboard, Env: c.options.Env}).Version(ctx)
		if restErr == nil && there.Ray != ours.Ray {
			return fmt.Errorf("the cluster at %s runs Ray %s, but %s has Ray %s (Python %s): give the Python that has Ray %s with --ray-python: %w",
				address, there.Ray, c.python, ours.Ray, ours.Python, there.Ray, err)
		}
	}
	return fmt.Errorf("%w (%s has Ray %s and Python %s: the cluster must have the same)", err, c.python, ours.Ray, ours.Python)
}
