package ray_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// server is the program at work.
type server struct {
	cmd  *exec.Cmd
	log  *tail
	done chan struct{}
}

// serve starts eagleray serve with ranks on the site, in the environment of a driver there.
// binary "" is the program.
func (s *site) serve(t testing.TB, binary string, env []string, args ...string) *server {
	t.Helper()
	if binary == "" {
		binary = program(t)
	}
	if env == nil {
		env = s.Env
	}
	return startProgram(t, binary, env, append([]string{"serve", "--port", "0",
		"--distributed-executor-backend", "ray", "--ray-address", s.Address, "--ray-python",
		s.Ray.Python, "--ray-namespace", namespace,
		"--node-ip", s.head(), "--ray-device-key", "GPU", "--kv-cache-memory-bytes", "64M"},
		args...)...)
}

// startProgram starts the program, in this process's environment when env is nil.
func startProgram(t testing.TB, binary string, env []string, args ...string) *server {
	t.Helper()
	p := &server{log: &tail{}, done: make(chan struct{}), cmd: exec.Command(binary, args...)}
	p.cmd.Env, p.cmd.Stderr = env, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		// The exit code is looked at by exit.
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("log of the server:\n%s", p.log)
		}
	})
	return p
}

// await waits for a line of the log.
func (p *server) await(t testing.TB, text string) (line string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q in the log", text), func() bool {
		line = p.log.line(text)
		select {
		case <-p.done:
			if line = p.log.line(text); line == "" {
				t.Fatalf("the server ended before %q", text)
			}
		default:
		}
		return line != ""
	})
	return line
}

// url is the server's, when it is ready.
func (p *server) url(t testing.TB) string { return attribute(p.await(t, "msg=ready"), "url") }

// workers are the pids of its ranks.
func (p *server) workers(t testing.TB) (pids []int) {
	t.Helper()
	for text := range strings.SplitSeq(attribute(p.await(t, `msg="ray init"`), "pids"), ",") {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func (p *server) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Error(err)
	}
}

// exit waits for its end and returns the exit code, -1 for a signal.
func (p *server) exit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// completed is what complete returns.
type completed struct {
	text string
	err  error
}

// running calls complete, and returns when the request runs.
func running(t *testing.T, url string, tokens int) <-chan completed {
	t.Helper()
	asked := make(chan completed, 1)
	go func() {
		text, err := complete(t, url, tokens)
		asked <- completed{text, err}
	}()
	eventually(t, "a running request", func() bool { return runs(t, url) })
	return asked
}

// complete asks a server for tokens.
func complete(t testing.TB, url string, tokens int) (text string, err error) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": "Package bytes implements",
		"max_tokens": tokens, "temperature": 0, "ignore_eos": true})
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: patience}
	resp, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, raw)
	}
	var answer struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", err
	}
	return answer.Choices[0].Text, nil
}

// phases are the messages of a start, in their order.
var phases = []string{`msg="ray connect"`, `msg="ray place"`, `msg="ray order"`, `msg="ray spawn"`,
	`msg="ray identify"`,
	`msg="ray ship"`, `msg="ray init"`, "msg=ready"}

// TestServe serves from a program that the nodes cannot find: the first start brings it to them,
// the second does not.
func TestServe(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		raw, err := os.ReadFile(program(t))
		if err != nil {
			t.Fatal(err)
		}
		// Of a hash that no earlier run has left in a cache.
		raw = append(raw, []byte(s.Dir)...)
		texts := map[string]bool{}
		for i, shipped := range []string{"2", "0"} {
			t.Run(fmt.Sprintf("start%d", i), func(t *testing.T) {
				binary := filepath.Join(t.TempDir(), "eagleray")
				if err := os.WriteFile(binary, raw, 0o700); err != nil {
					t.Fatal(err)
				}
				p := s.serve(t, binary, nil, "-tp", "4")
				if err := os.Remove(binary); err != nil {
					t.Fatal(err)
				}
				text, err := complete(t, p.url(t), 16)
				if err != nil {
					t.Fatal(err)
				}
				texts[text] = true
				at := -1
				for _, phase := range phases {
					next := strings.Index(p.log.String(), phase)
					if next <= at {
						t.Errorf("%s is not in its place", phase)
					}
					at = next
				}
				if line := p.log.line(`msg="ray ship"`); attribute(line, "shipped") != shipped ||
					attribute(line, "nodes") != "2" {
					t.Errorf("%s, want %s shipped", line, shipped)
				}
				names := strings.Join(s.ours(t), " ")
				for _, suffix := range []string{"_r0_TP0", "_r1_TP1", "_r2_TP2", "_r3_TP3"} {
					if !strings.Contains(names+" ", suffix+" ") {
						t.Errorf("actors %s", names)
					}
				}
				p.signal(t, syscall.SIGTERM)
				if code := p.exit(t); code != 0 {
					t.Errorf("exit code %d", code)
				}
				s.clean(t)
			})
		}
		if len(texts) != 1 {
			t.Errorf("texts %v", texts)
		}
	})
}

// TestServeKilled sends SIGKILL to the driver at several moments. Ray and the workers' watch of
// their parent do the rest.
func TestServeKilled(t *testing.T) { ending(t, syscall.SIGKILL) }

// TestServeStopped sends SIGTERM to the driver at the same moments.
func TestServeStopped(t *testing.T) { ending(t, syscall.SIGTERM) }

func ending(t *testing.T, with os.Signal) {
	each(t, func(t *testing.T, s *site) {
		for _, moment := range []string{"connect", "waiting for a place", "spawn", "identify",
			"ship", "ready", "load"} {
			t.Run(moment, func(t *testing.T) {
				if moment == "waiting for a place" {
					s.group(t, "", bundles(6))
				}
				p := s.serve(t, "", nil, "-tp", "2")
				asked := make(chan error, 1)
				switch moment {
				case "connect":
					eventually(t, "the bridge",
						func() bool { return len(bridges(p.cmd.Process.Pid)) > 0 })
					// Somewhere from the import of Ray to the end of ray.init; any moment must do.
					time.Sleep(time.Duration(rand.Int64N(int64(1500 * time.Millisecond))))
				case "waiting for a place":
					eventually(t, "the pending group", func() bool { return s.pending(t) })
				case "spawn":
					p.await(t, `msg="ray order"`)
				case "identify":
					p.await(t, `msg="ray spawn"`)
				case "ship":
					p.await(t, `msg="ray identify"`)
				case "ready":
					p.url(t)
				case "load":
					url := p.url(t)
					go func() {
						_, err := complete(t, url, 1500)
						asked <- err
					}()
					eventually(t, "a running request", func() bool { return runs(t, url) })
				}
				ours := bridges(p.cmd.Process.Pid)
				p.signal(t, with)
				begun := time.Now()
				code := p.exit(t)
				ended := time.Since(begun)
				eventually(t, "the end of the bridge",
					func() bool { return len(ours) == 1 && gone(ours[0]) })
				s.clean(t)
				t.Logf("ended after %v, clean after %v more", ended.Round(time.Millisecond),
					(time.Since(begun) - ended).Round(time.Millisecond))
				if want := map[os.Signal]int{syscall.SIGKILL: -1,
					syscall.SIGTERM: 0}[with]; code != want {
					t.Errorf("exit code %d, want %d", code, want)
				}
				if moment != "load" {
					return
				}
				// Asked to end, it finishes what it has begun.
				if err := <-asked; (err == nil) != (with == syscall.SIGTERM) {
					t.Errorf("the request: %v", err)
				}
			})
		}
	})
}

// runs tells whether a server has a running request.
func runs(t testing.TB, url string) bool { return requests(t, url) == 1 }

// requests is how many requests run on a server, 0 also if it does not answer.
func requests(t testing.TB, url string) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+adapterKey) // which few servers want
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0
	}
	return total(t, string(raw), "eagleray:num_requests_running", "")
}

// total adds up the series of a metric that have a label, such as those of all places.
func total(t testing.TB, metrics, name, label string) (sum int) {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, label) {
			n, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
			if err != nil {
				t.Error(err)
			}
			sum += n
		}
	}
	return sum
}

// TestServeLosesRank wants clients and the log to be told how a rank was lost, and exit code 1, of
// a server that is not to restart them.
func TestServeLosesRank(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		p := s.serve(t, "", nil, "-tp", "2", "--on-failure", "exit")
		url := p.url(t)
		asked := make(chan error, 1)
		go func() {
			_, err := complete(t, url, 1500)
			asked <- err
		}()
		eventually(t, "a running request", func() bool { return runs(t, url) })
		lost := p.workers(t)[1]
		kill(t, lost, syscall.SIGKILL)
		err := <-asked
		want := fmt.Sprintf("rank 1 on %s (pid %d)", s.head(), lost)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "signal: SIGKILL") {
			t.Errorf("the request: %v, want %s", err, want)
		}
		if code := p.exit(t); code != 1 {
			t.Errorf("exit code %d", code)
		}
		if last := p.log.line("eagleray: "); !strings.Contains(last, want) ||
			!strings.Contains(last, "signal: SIGKILL") {
			t.Errorf("last line %q", last)
		}
		s.clean(t)
	})
}

// TestServeRefuses wants a mistake on the command line to be told as such, and an exit code.
func TestServeRefuses(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		id := s.group(t, "refuses", bundles(4))
		// Another installed Ray; "" for none.
		other, otherVersion := "", "none"
		for _, r := range raytest.Installed() {
			if r.Version != s.Ray.Version {
				other, otherVersion = r.Python, r.Version
			}
		}
		for _, c := range []struct {
			name string
			args []string
			code int
			want []string
		}{
			{"duplicate index", []string{"-tp", "2", "--ray-placement-group", id,
				"--bundle-indices", "1,1"}, 2,
				[]string{"--bundle-indices 1,1: cannot have duplicate values, 1 is there twice"}},
			{"too many indices", []string{"-tp", "2", "--ray-placement-group", "refuses",
				"--bundle-indices", "0,1,2"}, 2,
				[]string{"--bundle-indices 0,1,2: must have the same size as the world (2), " +
					"got 3"}},
			{"no index", []string{"-tp", "2", "--bundle-indices", "a,b"}, 2,
				[]string{`--bundle-indices "a,b": "a" is not a bundle index`}},
			{"more than a device", []string{"--ray-devices-per-worker", "2"}, 2,
				[]string{"--ray-devices-per-worker 2", "one device or a part of one"}},
			{"no such Python", []string{"--ray-python", "/nowhere/python"}, 1,
				[]string{"--ray-python /nowhere/python: "}},
			// The cluster's own version is told where Ray, or a dashboard at its usual port, says
			// it.
			{"another Ray", []string{"--ray-python", other}, 1,
				[]string{"ray, phase connect: ", otherVersion}},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.name == "another Ray" && other == "" {
					t.Skip("only one Ray is installed")
				}
				p := s.serve(t, "", nil, c.args...)
				code := p.exit(t)
				if code != c.code {
					t.Errorf("exit code %d, want %d", code, c.code)
				}
				for _, want := range append(c.want, "eagleray: ") {
					if !strings.Contains(p.log.String(), want) {
						t.Errorf("%s\n%q is not in it", p.log, want)
					}
				}
				s.clean(t)
			})
		}
	})
}
