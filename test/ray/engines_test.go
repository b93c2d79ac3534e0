package ray_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// questions are what engines are asked, all at once; the last is long enough to be divided over
// ranks.
var questions = []string{"What does strings.Index do?", "What does os.Open do?",
	"What is a goroutine?", "What does sort.Ints do?",
	strings.Repeat("What does strings.Index do? ", 20)}

// asked is an engine, or several, with their log.
type asked struct {
	*replicas.Router
	metrics *metrics.Metrics
	log     *tail
}

// open opens an engine on the site, or in this process when backend is uni. It ends with the test.
func (s *site) open(
	t testing.TB, backend string, l layout.Layout, change func(*config.Ray),
) (asked, error) {
	t.Helper()
	return s.openSeveral(t, backend, 1, l, change)
}

// openSeveral opens as many engines, each of a layout.
func (s *site) openSeveral(t testing.TB, backend string, engines int, l layout.Layout,
	change func(*config.Ray)) (asked, error) {
	t.Helper()
	c := s.settings(backend, engines, l)
	if change != nil {
		change(&c.Parallel.Ray)
	}
	return openAs(t, c)
}

// settings are those of as many engines on the site, each of a layout.
func (s *site) settings(backend string, engines int, l layout.Layout) config.Config {
	c := config.Default()
	c.Cache.MemoryBytes = 64 << 20
	l = l.Sizes()
	c.Parallel.Backend, c.Parallel.DataParallelSize = backend, engines
	c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = l.TP, l.PP
	c.Parallel.PrefillContextParallelSize = l.PCP
	if engines > 1 {
		c.Recovery.OnFailure = "exit" // what the others do meanwhile is looked at
	}
	r := &c.Parallel.Ray
	r.Address, r.Namespace, r.Python, r.NodeIP, r.DeviceKey = s.Address, namespace, s.Ray.Python,
		s.head(), "GPU"
	return c
}

// openAs opens engines as a configuration says. They end with the test.
func openAs(t testing.TB, c config.Config) (asked, error) {
	t.Helper()
	a := asked{log: &tail{}}
	var err error
	a.Router, a.metrics, err = replicas.Open(within(t), engine.Options{Config: c,
		Log: slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return a, fmt.Errorf("%s\n%w", a.log, err)
	}
	t.Cleanup(func() { a.end(t) })
	return a, nil
}

func (a asked) end(t testing.TB) {
	t.Helper()
	if err := a.Stop(context.Background()); err != nil {
		t.Errorf("%s\nstop: %v", a.log, err)
	}
}

// answers asks all questions at once, the most likely tokens wanted.
func (a asked) answers(ctx context.Context) ([]string, error) {
	texts, errs := make([]string, len(questions)), make([]error, len(questions))
	var asking sync.WaitGroup
	for i, q := range questions {
		asking.Go(func() { texts[i], errs[i] = a.answer(ctx, q) })
	}
	asking.Wait()
	return texts, errors.Join(errs...)
}

func (a asked) answer(ctx context.Context, question string) (text string, err error) {
	greedy := sample.Settings{Temperature: new(0.0)}
	params, err := a.Info().Resolve(&sample.Overrides{Settings: greedy}, 40)
	if err != nil {
		return "", err
	}
	prompt := "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n"
	s, err := a.Submit(ctx, engine.NewRequest(a.Info().Tokenizer.Encode(prompt, false), params))
	if err != nil {
		return "", err
	}
	defer s.Close()
	for {
		d, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return text, err
		}
		text += string(d.Text)
	}
}

// driverEnv gives this process the environment of a driver of the site until the test ends.
func (s *site) driverEnv(t *testing.T) {
	t.Helper()
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		if os.Getenv(name) != value {
			t.Setenv(name, value)
		}
	}
}

// alone are the answers of one rank in this process.
func (s *site) alone(t *testing.T) []string {
	t.Helper()
	e, err := s.open(t, "uni", layout.Layout{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.answers(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(want, "") {
		t.Fatalf("answers %q", want)
	}
	return want
}

// TestGeneration wants the text of one rank in this process from ranks of any layout, in groups of
// our own and of others. The names of their actors say where each rank stands.
func TestGeneration(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		s.driverEnv(t)
		want := s.alone(t)
		for _, c := range []struct {
			layout layout.Layout
			group  string
		}{{layout.Layout{TP: 1}, ""}, {layout.Layout{TP: 2}, "generation"}, {layout.Layout{TP: 4},
			""},
			{layout.Layout{TP: 1, PP: 2}, ""}, {layout.Layout{TP: 2, PP: 2}, ""},
			{layout.Layout{TP: 2, PCP: 2}, ""}} {
			name := fmt.Sprintf("tp%d", c.layout.TP)
			if c.layout.PP > 1 {
				name += fmt.Sprintf("pp%d", c.layout.PP)
			}
			if c.layout.PCP > 1 {
				name += fmt.Sprintf("pcp%d", c.layout.PCP)
			}
			t.Run(name, func(t *testing.T) {
				if c.group != "" {
					s.group(t, c.group, bundles(c.layout.World()))
				}
				e, err := s.open(t, "ray", c.layout,
					func(r *config.Ray) { r.PlacementGroup = c.group })
				if err != nil {
					t.Fatal(err)
				}
				actors := s.ours(t)
				if len(actors) != c.layout.World() {
					t.Fatalf("actors %v", actors)
				}
				for rank, actor := range actors {
					end := fmt.Sprintf("_r%d%s", rank, c.layout.Suffix(rank))
					if !strings.HasSuffix(actor, end) {
						t.Errorf("rank %d is actor %s, want …%s", rank, actor, end)
					}
				}
				got, err := e.answers(within(t))
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%v, answers\n%q, want\n%q", err, got, want)
				}
				e.end(t)
				s.clean(t)
			})
		}
	})
}

// TestEngines starts several engines at the same moment and has them answer at the same time.
func TestEngines(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		s.driverEnv(t)
		want := s.alone(t)
		t.Run("groups of their own and of others", func(t *testing.T) {
			one, two := s.group(t, "one", bundles(2)), s.group(t, "two", bundles(2))
			before := listening(t)
			engines := s.together(t, want,
				func(r *config.Ray) { r.PlacementGroup = "one" },
				func(r *config.Ray) { r.PlacementGroup = two },
				nil)
			for i, id := range []string{one, two} {
				if got := attribute(engines[i].log.line(`msg="ray place"`), "group"); got != id {
					t.Errorf("engine %d is in group %s, want %s", i, got, id)
				}
			}
			var ports []string
			for addr := range listening(t) {
				if before[addr] {
					continue
				}
				ports = append(ports, addr)
				_, port, _ := net.SplitHostPort(addr)
				if n, err := strconv.Atoi(port); err != nil || n < 1024 {
					t.Errorf("listening at %s", addr)
				}
				if l, err := net.Listen("tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("%s is not held: %v", addr, err)
					l.Close()
				}
			}
			if len(ports) != len(engines) {
				t.Errorf("%d engines listen at %v", len(engines), ports)
			}
			for _, e := range engines {
				e.end(t)
			}
			s.clean(t)
		})
		t.Run("one group", func(t *testing.T) {
			id := s.group(t, "shared", bundles(4))
			orders := []string{"2,1", "0,3"}
			engines := s.together(t, want,
				func(r *config.Ray) { r.PlacementGroup, r.BundleIndices = id, orders[0] },
				func(r *config.Ray) { r.PlacementGroup, r.BundleIndices = "shared", orders[1] })
			for i, e := range engines {
				if got := attribute(e.log.line(`msg="ray order"`), "bundles"); got != orders[i] {
					t.Errorf("engine %d has bundles %s, want %s", i, got, orders[i])
				}
			}
			// The end of one is no matter to the other.
			engines[0].end(t)
			got, err := engines[1].answers(within(t))
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("after the other's end: %v, answers %q", err, got)
			}
			engines[1].end(t)
			s.clean(t)
			if state := s.find(t, id).State; state != "CREATED" {
				t.Errorf("the adopted group is %s", state)
			}
		})
	})
}

// together opens engines of two ranks at the same moment and asks all of them at the same time.
func (s *site) together(t *testing.T, want []string, changes ...func(*config.Ray)) []asked {
	t.Helper()
	engines, errs := make([]asked, len(changes)), make([]error, len(changes))
	var working sync.WaitGroup
	for i, change := range changes {
		working.Go(func() { engines[i], errs[i] = s.open(t, "ray", layout.Layout{TP: 2}, change) })
	}
	working.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, e := range engines {
		working.Go(func() {
			got, err := e.answers(within(t))
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("engine %d: %v, answers\n%q, want\n%q", i, err, got, want)
			}
		})
	}
	working.Wait()
	return engines
}

// listening are the addresses at which this process accepts TCP connections over IPv4.
func listening(t testing.TB) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			own[target] = true
		}
	}
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		const listen = "0A"
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listen || !own["socket:["+f[9]+"]"] {
			continue
		}
		var ip [4]byte
		var port uint16
		if _, err := fmt.Sscanf(f[1], "%02X%02X%02X%02X:%04X", &ip[3], &ip[2], &ip[1], &ip[0],
			&port); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found[net.JoinHostPort(net.IP(ip[:]).String(), strconv.Itoa(int(port)))] = true
	}
	return found
}
