package ray

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// ErrGone is wrapped by every error that says that the bridge has ended or fallen silent; the
// text has its last lines of output. All actors and groups of the client are gone with it.
var ErrGone = errors.New("the Ray bridge is gone")

// ErrAuth is wrapped by errors of a cluster that refuses the token, or wants one where none was
// given.
var ErrAuth = errors.New("set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token (and " +
	"RAY_AUTH_MODE=token)")

// ErrNotInstalled is wrapped by the error of Start when the Python it was given has no Ray.
var ErrNotInstalled = errors.New("install it there, or name another interpreter with --ray-python")

// Cause is one exception of a chain.
type Cause struct{ Class, Message string }

// Error is an exception that Ray raised in an operation. Class is the name of the exception's
// class, for example "ActorDiedError" or "RuntimeEnvSetupError". Causes goes from the nearest
// cause to the first; Ray's own text often hides what they say.
type Error struct {
	Op, Class, Message string
	Causes             []Cause
}

// Error is the operation, the exception and those of its causes that add something, in one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ray %s: %s", e.Op, e.Class)
	if e.Message != "" {
		b.WriteString(": " + OneLine(e.Message))
	}
	said := e.Message
	for _, c := range e.Causes {
		if c.Message == "" || strings.Contains(said, c.Message) {
			continue
		}
		fmt.Fprintf(&b, "; caused by %s: %s", c.Class, OneLine(c.Message))
		said += c.Message
	}
	if e.refused() {
		b.WriteString(": " + ErrAuth.Error())
	}
	return b.String()
}

// Is makes errors.Is(err, ErrAuth) true for a refused token.
func (e *Error) Is(target error) bool { return target == ErrAuth && e.refused() }

// refused recognises a refused or missing token anywhere in the chain: the class is one of Ray's
// from 2.52 on, the text that of the RPC status underneath.
func (e *Error) refused() bool {
	if authClass(e.Class, e.Message) {
		return true
	}
	return slices.ContainsFunc(e.Causes, func(c Cause) bool {
		return authClass(c.Class,
			c.Message)
	})
}

// Unreachable tells that nothing listened at the address of the cluster.
func (e *Error) Unreachable() bool { return e.Class == "Unreachable" }

func authClass(class, message string) bool {
	return class == "AuthenticationError" || strings.Contains(message, "InvalidAuthToken") ||
		strings.Contains(message, "AuthenticationError")
}

// OneLine joins the lines of Ray's words, without those that say what is known anyway ("pid: 17").
func OneLine(s string) string {
	var words []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !knownFact.MatchString(line) {
			words = append(words, line)
		}
	}
	return strings.Join(words, " ")
}

var knownFact = regexp.MustCompile(`^(class_name|actor_id|pid|name|namespace|ip): `)

func newError(op string, f *frame.Fault) *Error {
	e := &Error{Op: op, Class: f.Class, Message: f.Message}
	for _, c := range f.Causes {
		e.Causes = append(e.Causes, Cause{Class: c.Class, Message: c.Message})
	}
	return e
}

// RankErrors holds what went wrong for each rank of an operation on several; the other ranks
// succeeded. The values are mostly *Error. Class "Pending" is an actor that Ray has not started
// within the operation's deadline.
type RankErrors map[int]error

// Error lists the ranks in order, those with the same error together.
func (e RankErrors) Error() string {
	var texts []string
	ranks := map[string][]string{}
	for _, rank := range slices.Sorted(maps.Keys(e)) {
		text := e[rank].Error()
		if ranks[text] == nil {
			texts = append(texts, text)
		}
		ranks[text] = append(ranks[text], strconv.Itoa(rank))
	}
	for i, text := range texts {
		who := "rank "
		if len(ranks[text]) > 1 {
			who = "ranks "
		}
		texts[i] = who + strings.Join(ranks[text], ", ") + ": " + text
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors in the order of their ranks.
func (e RankErrors) Unwrap() []error {
	errs := make([]error, 0, len(e))
	for _, rank := range slices.Sorted(maps.Keys(e)) {
		errs = append(errs, e[rank])
	}
	return errs
}

// rankErrors makes an error of the faults that an operation reported, nil if there are none.
func rankErrors(op string, faults map[int]*frame.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	errs := make(RankErrors, len(faults))
	for rank, f := range faults {
		errs[rank] = newError(op, f)
	}
	return errs
}
