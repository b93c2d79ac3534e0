package ray

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// Options say how the bridge is started.
type Options struct {
	// Python is --ray-python: the interpreter of the Ray installation, as FindPython takes it.
	Python string
	// Env is the bridge's whole environment; nil means this process's.
	Env []string
	// Log receives the bridge's output at debug level; nil discards it.
	Log *slog.Logger
	// Conn is for tests: a connection to something that speaks like a bridge (package fake),
	// instead of a process.
	Conn net.Conn
}

// Versions are those of the bridge.
type Versions struct{ Ray, Python string }

// Client is one Ray job.
type Client struct {
	options Options
	python  string

	session *session
	hello   frame.Hello

	news  chan frame.Exit
	exits chan Exit

	closing  sync.Once
	quit     chan struct{}
	closeErr error
	running  sync.WaitGroup
}

// Start starts the bridge and waits for its hello. A Python without Ray is an error that names
// the interpreter and wraps ErrNotInstalled. ctx bounds the start only.
func Start(ctx context.Context, options Options) (*Client, error) {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Env == nil {
		options.Env = os.Environ()
	}
	c := &Client{options: options, python: options.Python, news: make(chan frame.Exit),
		exits: make(chan Exit),
		quit:  make(chan struct{})}
	if options.Conn == nil {
		python, err := FindPython(options.Python)
		if err != nil {
			return nil, err
		}
		c.python = python
	}
	// Before the session, whose reader hands its news to it.
	c.running.Go(c.deliver)
	s, hello, err := c.begin(ctx)
	if err != nil {
		close(c.quit)
		c.running.Wait()
		return nil, err
	}
	c.session, c.hello = s, hello
	return c, nil
}

// begin starts a bridge and waits for its hello.
func (c *Client) begin(ctx context.Context) (*session, frame.Hello, error) {
	conn, p := c.options.Conn, (*process)(nil)
	if conn == nil {
		var err error
		if p, conn, err = spawn(c.python, withFewRetries(withTokenMode(c.options.Env)),
			c.options.Log); err != nil {
			return nil, frame.Hello{}, err
		}
	}
	s := newSession(conn, p, c.heardExit)
	var hello frame.Hello
	var err error
	select {
	case hello = <-s.hello:
		err = c.helloError(hello)
	case <-s.gone:
		select {
		case hello = <-s.hello:
			err = c.helloError(hello)
		default:
			err = fmt.Errorf("%s did not run the Ray bridge: %w", c.python, s.failure())
		}
	case <-ctx.Done():
		err = fmt.Errorf("wait for the Ray bridge under %s: %w", c.python, context.Cause(ctx))
	}
	if err == nil {
		return s, hello, nil
	}
	s.close()
	s.kill()
	s.wait()
	return nil, frame.Hello{}, err
}

// helloError is why the interpreter has no usable Ray, in one line.
func (c *Client) helloError(h frame.Hello) error {
	if h.Error == nil {
		return nil
	}
	if h.Error.Class == "ModuleNotFoundError" && h.Error.Message == "No module named 'ray'" {
		return fmt.Errorf("no Ray is installed for %s (Python %s): %w", c.python, h.Python,
			ErrNotInstalled)
	}
	return fmt.Errorf("import Ray with %s (Python %s): %w", c.python, h.Python,
		newError("import", h.Error))
}

// FindPython returns the interpreter of the Ray installation: the flag's value if it is not
// empty, else the active virtual environment's, else python3 of PATH. Whether Ray is there, Start
// finds out.
func FindPython(flag string) (string, error) {
	if flag != "" {
		path, err := exec.LookPath(flag)
		if err != nil {
			return "", fmt.Errorf("--ray-python %s: %w", flag, err)
		}
		return path, nil
	}
	if env := os.Getenv("VIRTUAL_ENV"); env != "" {
		path, err := exec.LookPath(env + "/bin/python")
		if err != nil {
			return "", fmt.Errorf("VIRTUAL_ENV %s: %w", env, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("no Python for the Ray bridge: name one with --ray-python: %w", err)
	}
	return path, nil
}

// Hello returns the versions of Ray and Python that the bridge runs.
func (c *Client) Hello() Versions {
	return Versions{Ray: c.hello.Ray, Python: c.hello.Python}
}

// Exits delivers the ends of workers that this client did not ask for, each once and in order. It
// is closed by Close.
func (c *Client) Exits() <-chan Exit { return c.exits }

// Gone is closed when the bridge has ended or fallen silent, and by Close.
func (c *Client) Gone() <-chan struct{} { return c.session.gone }

// Err says why Gone is closed; nil before.
func (c *Client) Err() error { return c.session.failure() }

func (c *Client) call(ctx context.Context, op string, args, result any) error {
	return c.session.call(ctx, op, args, result)
}

// connect joins the cluster. Meanwhile the bridge may be silent: ray.init holds Python's
// interpreter lock.
func (c *Client) connect(ctx context.Context, options ConnectOptions) (Cluster, error) {
	c.session.silencers.Add(1)
	defer c.session.silencers.Add(-1)
	var cluster Cluster
	err := c.session.call(ctx, "connect", options, &cluster)
	if err != nil {
		err = c.withVersions(ctx, cmp.Or(options.Address, lookup(c.options.Env, "RAY_ADDRESS")),
			err)
	}
	return cluster, err
}

// heardExit is called by the session's reader, which must not wait for the reader of Exits.
func (c *Client) heardExit(e frame.Exit) {
	select {
	case c.news <- e:
	case <-c.quit:
	}
}

// deliver holds the news of exits until they are read.
func (c *Client) deliver() {
	defer close(c.exits)
	var held []Exit
	for {
		var out chan Exit
		var first Exit
		if len(held) > 0 {
			out, first = c.exits, held[0]
		}
		select {
		case e := <-c.news:
			held = append(held, Exit{Rank: e.Rank, PID: e.PID, Code: e.Code, Signal: e.Signal,
				Class: e.Class, Reason: e.Reason,
				Stderr: e.Stderr, At: time.Now()})
		case out <- first:
			held = held[1:]
		case <-c.quit:
			return
		}
	}
}

// Close ends the actors and removes the groups that this client has made, leaves the cluster and
// ends the bridge. It may be called at any time, also while other calls are in flight (they
// fail), and more than once. When ctx ends first the bridge is killed, which lets Ray clean up by
// itself. It returns when no process and no goroutine is left.
func (c *Client) Close(ctx context.Context) error {
	c.closing.Do(func() { c.closeErr = c.close(ctx) })
	return c.closeErr
}

func (c *Client) close(ctx context.Context) error {
	s := c.session
	err := s.call(ctx, "shutdown", nil, nil)
	if errors.Is(err, ErrGone) {
		// It had ended, or was told to end while it connected: Ray cleans up by itself.
		err = nil
	}
	s.close()
	if s.process != nil {
		select {
		case <-s.process.done:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		s.process.kill()
	}
	close(c.quit)
	s.wait()
	c.running.Wait()
	return err
}
