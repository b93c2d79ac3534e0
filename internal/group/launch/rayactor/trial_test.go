package rayactor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// The fake cluster does what Ray does: TestFacts of test/ray proves it. Time is that of a bubble,
// so that every deadline is met without waiting, and a goroutine that is left is a failure.

// trial is one start on a cluster of two nodes with two GPUs each.
type trial struct {
	*fake.Cluster
	t      *testing.T
	world  int
	log    bytes.Buffer
	phases []string
	l      *Launcher
	// patience is what the launcher is given before its first start.
	patience time.Duration
	// crash closes the driver's end of the connection, as its death does.
	crash func()
}

func newTrial(t *testing.T, world int) *trial {
	c := fake.New()
	for i := range 2 {
		ip := fmt.Sprintf("10.0.0.%d", i+1)
		c.AddNode(ray.Node{ID: fmt.Sprintf("node%d", i+1), IP: ip,
			Resources: map[string]float64{"CPU": 4, "GPU": 2}})
	}
	return &trial{Cluster: c, t: t, world: world}
}

// start starts all ranks; what is at fault is in the error. The launcher is not stopped.
func (x *trial) start(ctx context.Context, change func(*Options)) ([]launch.Worker, error) {
	o := Options{Layout: layout.Layout{TP: x.world},
		Ray: config.Ray{Address: x.Address(), NodeIP: "10.0.0.1", SkipBundle: -1, DeviceKey: GPU,
			PerWorker: 1},
		Log: slog.New(slog.NewTextHandler(&x.log, nil)),
		Start: func(ctx context.Context, o ray.Options) (*ray.Client, error) {
			o.Conn = x.Dial()
			x.crash = func() { o.Conn.Close() }
			return ray.Start(ctx, o)
		},
		Events: x.listen(func(phase string) { x.phases = append(x.phases, phase) })}
	if change != nil {
		change(&o)
	}
	var err error
	if x.l, err = Connect(ctx, o); err != nil {
		return nil, err
	}
	x.l.SetPatience(x.patience)
	specs := make([]launch.Spec, x.world)
	for rank := range specs {
		invitation := &join.Invitation{Endpoint: handshake.Endpoint{Instance: "trial"}, Rank: rank,
			World: x.world, Place: machine.Place{Index: rank, Of: x.world}}
		specs[rank] = launch.Spec{Rank: rank, LocalRank: rank, Invitation: invitation}
	}
	return x.l.Launch(ctx, specs)
}

// listen is a listener that logs, and calls f with the name of each phase that begins.
func (x *trial) listen(f func(phase string)) status.Listener {
	log := status.LogTo(slog.New(slog.NewTextHandler(&x.log, nil)))
	return status.Tee(log, func(e status.Event) {
		if p, ok := e.(status.Progress); ok {
			f(p.Phase)
		}
	})
}

// end stops the launcher and checks that nothing is left on the cluster but adopted groups.
func (x *trial) end(adopted ...string) {
	x.t.Helper()
	started := time.Now()
	if x.l != nil {
		if err := x.l.Stop(context.Background(), nil); err != nil {
			x.t.Errorf("stop: %v", err)
		}
	}
	if took := time.Since(started); took > closeTimeout+stopGrace {
		x.t.Errorf("stopping took %v", took)
	}
	x.Wait()
	x.clean(adopted...)
}

func (x *trial) clean(adopted ...string) {
	x.t.Helper()
	if left := x.Actors(); len(left) > 0 {
		x.t.Errorf("actors are left: %+v", left)
	}
	for _, g := range x.Groups() {
		if !slices.Contains(adopted, g.ID) {
			x.t.Errorf("a group is left: %+v", g)
		}
	}
}

// on does something at a moment.
func (x *trial) on(m moment, do func()) {
	if m.after {
		x.After(m.op, do)
	} else {
		x.Before(m.op, do)
	}
}

// each runs f in a bubble for 1, 2 and 4 ranks.
func each(t *testing.T, name string, f func(x *trial)) {
	t.Helper()
	for _, world := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%s, %d ranks", name, world), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(newTrial(t, world)) })
		})
	}
}

// wants checks that an error has all parts.
func (x *trial) wants(err error, parts ...string) {
	x.t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			x.t.Errorf("error %v lacks %q", err, part)
		}
	}
}

func TestStart(t *testing.T) {
	each(t, "start", func(x *trial) {
		workers, err := x.start(x.t.Context(), nil)
		if err != nil {
			x.t.Fatal(err)
		}
		want := []string{"ray connect", "ray place", "ray order", "ray spawn", "ray identify",
			"ray ship", "ray init"}
		if !slices.Equal(x.phases, want) {
			x.t.Errorf("phases %q", x.phases)
		}
		for rank, w := range workers {
			if w.Rank != rank || w.LocalRank != rank%2 ||
				w.Node != fmt.Sprintf("10.0.0.%d", 1+rank/2) || w.PID == 0 {
				x.t.Errorf("worker %+v", w)
			}
		}
		actors := x.Actors()
		if len(actors) != x.world {
			x.t.Errorf("actors %+v", actors)
		}
		for rank, a := range actors {
			// Any runtime environment makes Ray start Python twice.
			if a.Rank != rank || a.CPUs != 0 || a.GPUs != 1 || a.RuntimeEnv != nil ||
				!strings.HasPrefix(a.Name, fmt.Sprintf("eagleray_trial_r%d", rank)) {
				x.t.Errorf("actor %+v", a)
			}
		}
		x.end()
	})
}
