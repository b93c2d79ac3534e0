// Package doctor checks whether a machine, and with it a cluster, can serve a model as configured:
// each check says what it found, what that means, and what to do.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// State is the outcome of a check.
type State string

// The outcomes, from good to bad. Skip is a check that does not apply.
const (
	OK   State = "ok"
	Skip State = "skip"
	Warn State = "warn"
	Fail State = "fail"
)

// Result is what a check found.
type Result struct {
	Check string `json:"check"`
	State State  `json:"state"`
	// Found is what there is, Means what follows from it, Do what mends it. The last two are empty
	// when all is well.
	Found string `json:"found"`
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"`
	// Details are lines that follow in print.
	Details []string `json:"details,omitempty"`
}

func (r Result) String() string {
	s := fmt.Sprintf("%-4s  %-13s  %s", r.State, r.Check, r.Found)
	if r.Means != "" {
		s += ": " + r.Means
	}
	if r.Do != "" {
		s += " → " + r.Do
	}
	for _, line := range r.Details {
		s += "\n        " + line
	}
	return s
}

// Check is one thing to look at.
type Check struct {
	Name string
	Run  func(ctx context.Context) Result
}

// Run runs the checks in order, and writes each result as it comes. It returns them all.
func Run(ctx context.Context, checks []Check, to io.Writer) []Result {
	var all []Result
	for _, c := range checks {
		r := c.Run(ctx)
		r.Check = c.Name
		all = append(all, r)
		if to != nil && r.State != Skip {
			fmt.Fprintln(to, r)
		}
	}
	return all
}

// Failed is how many checks failed, and of how many there was a warning.
func Failed(results []Result) (failed, warned int) {
	for _, r := range results {
		switch r.State {
		case Fail:
			failed++
		case Warn:
			warned++
		}
	}
	return failed, warned
}

func ok(format string, args ...any) Result {
	return Result{State: OK, Found: fmt.Sprintf(format, args...)}
}

func skip() Result { return Result{State: Skip, Found: "does not apply"} }

// bad is a result that is not well: what was found, what it means and what to do, divided by "|".
func bad(state State, format string, args ...any) Result {
	parts := strings.SplitN(fmt.Sprintf(format, args...), "|", 3)
	return Result{State: state, Found: parts[0], Means: parts[1], Do: parts[2]}
}
