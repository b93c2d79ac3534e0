package ray_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"golang.org/x/sys/unix"
)

var factsOfActors = []fact{
	{"actors", "actors may be asked for before their group has its place; each says where it is " +
		"and what it got", func(t *testing.T, w *world) {
		c := w.client(t)
		id, err := c.CreateGroup(within(t),
			ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 2}, {"GPU": 1}, {"NPU": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		defer removeGroup(t, c, id)
		facts := spawned(t, c, []ray.ActorSpec{
			{Rank: 10, Group: id, Bundle: 0, GPUs: 2, Name: "eagleray_x_r0"},
			{Rank: 11, Group: id, Bundle: 1, GPUs: 0.5},
			{Rank: 12, Group: id, Bundle: 1, GPUs: 0.5},
			{Rank: 13, Group: id, Bundle: 2, Resources: map[string]float64{"NPU": 1}}})
		defer killActors(t, c, 10, 11, 12, 13)
		g, err := c.Group(within(t), id)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range facts {
			if f.Rank != 10+i || f.NodeID != g.Bundles[[]int{0, 1, 1, 2}[i]].NodeID ||
				!slices.Contains(w.nodes(), f.NodeIP) ||
				f.PID == 0 || f.ActorID == "" || f.Hostname == "" || f.CPUs < 1 ||
				f.Arch == "" ||
				f.Ray != w.version() || f.Python != c.Hello().Python || f.HasBinary != "" {
				t.Errorf("%+v", f)
			}
		}
		if d := facts[0].DeviceIDs; !slices.Equal(d, []string{"0", "1"}) {
			t.Errorf("two devices: %v", d)
		}
		if d := facts[1].DeviceIDs; len(d) != 1 || !slices.Equal(d, facts[2].DeviceIDs) {
			t.Errorf("two halves: %v and %v", d, facts[2].DeviceIDs)
		}
		if d := facts[3].DeviceIDs; len(d) != 0 {
			t.Errorf("GPUs of an actor with an NPU: %v", d)
		}
		npu, err := c.Facts(within(t), []int{13}, ray.FactsRequest{DeviceKey: "NPU"})
		if err != nil || len(npu[0].DeviceIDs) != 1 {
			t.Errorf("NPUs: %+v, %v", npu, err)
		}
	}},
	{"environment differs",
		"an actor names the variables that its node sets to another value, and no others",
		func(t *testing.T, w *world) {
			w.actors(t, 1)
			request := ray.FactsRequest{EnvDigests: map[string]string{nodeVariable: ray.EnvDigest(
				"of the driver"),
				"EAGLERAY_NOT_SET": ray.EnvDigest("x")}}
			for _, want := range [][]string{{nodeVariable}, nil} {
				facts, err := w.client(t).Facts(within(t), []int{0}, request)
				if err != nil || !slices.Equal(facts[0].Differs, want) {
					t.Errorf("differs: %+v, %v, want %v", facts, err, want)
				}
				request.EnvDigests[nodeVariable] = ray.EnvDigest(nodeValue)
			}
		}},
	{"refused actors",
		"a wrong bundle, too large a wish, an unknown group or a taken name is told at once by " +
			"rank",
		func(t *testing.T, w *world) {
			c := w.client(t)
			group := w.group(t, c, ray.GroupSpec{Bundles: bundles(2)})
			err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 10, Group: group, GPUs: 1,
				Name: "taken"},
				{Rank: 11, Group: group, Bundle: 7, GPUs: 1},
				{Rank: 12, Group: group, Bundle: 1, GPUs: 1, Name: "taken"},
				{Rank: 13, Group: group, Bundle: 1, GPUs: 2}, {Rank: 14, Group: "nonsense"},
				{Rank: 10}})
			defer killActors(t, c, 10)
			for rank, want := range map[int]string{10: "has an actor already",
				11: "bundle index 7 is invalid", 12: "taken",
				13: "resource request", 14: "unknown placement group"} {
				// Newer versions have a class for a name that is taken.
				if got := rankClass(t, err, rank); got != "ValueError" &&
					(rank != 12 || got != "ActorAlreadyExistsError") {
					t.Errorf("rank %d: %s in %v, want %q", rank, got, err, want)
				}
				refused(t, "a rank", err.(ray.RankErrors)[rank], rankClass(t, err, rank), want)
			}
			if _, err := c.Facts(within(t), []int{10}, ray.FactsRequest{}); err != nil {
				t.Errorf("the rank that was not refused: %v", err)
			}
		}},
	{"pending", "an actor that does not start is told as such at the deadline; soon after " +
		"another rank has failed", func(t *testing.T, w *world) {
		c := w.client(t)
		group := w.group(t, c, ray.GroupSpec{Bundles: bundles(1)})
		spawned(t, c, []ray.ActorSpec{{Rank: 10, Group: group, GPUs: 1}})
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 11, Group: group,
			GPUs: 1}}); err != nil {
			t.Fatal(err)
		}
		defer killActors(t, c, 10, 11)
		ctx, cancel := context.WithTimeout(within(t), 1500*time.Millisecond)
		defer cancel()
		_, err := c.Facts(ctx, []int{11}, ray.FactsRequest{})
		if got := rankClass(t, err, 11); got != "Pending" {
			t.Errorf("a bundle that is taken: %v", err)
		}
		refused(t, "a bundle that is taken", err.(ray.RankErrors)[11], "Pending",
			"GPU: 1 in bundle 0")
		_, err = c.Facts(within(t), []int{11, 19}, ray.FactsRequest{})
		if pending, none := rankClass(t, err, 11),
			rankClass(t, err, 19); pending != "Pending" || none != "ValueError" {
			t.Errorf("beside a rank without an actor: %v", err)
		}
		// A rank that was killed is free, and so is what it had.
		killActors(t, c, 10)
		facts, err := c.Facts(within(t), []int{11}, ray.FactsRequest{DeviceKey: "GPU"})
		if err != nil || len(facts[0].DeviceIDs) != 1 {
			t.Errorf("after the other's end: %+v, %v", facts, err)
		}
	}},
	{"runtime environment fails", "an actor whose runtime environment cannot be set up says so",
		func(t *testing.T, w *world) {
			c := w.client(t)
			env := []byte(`{"working_dir": "gcs://_ray_pkg_0000000000000000.zip"}`)
			if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 10,
				RuntimeEnv: env}}); err != nil {
				t.Fatal(err)
			}
			defer killActors(t, c, 10)
			_, err := c.Facts(within(t), []int{10}, ray.FactsRequest{})
			if got := rankClass(t, err, 10); got != "RuntimeEnvSetupError" {
				t.Errorf("no such package: %v", err)
			}
		}},
	{"dead actor", "an actor that is dead answers with an exception of Ray, whatever it is asked",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			w.signalActor(t, f, unix.SIGKILL)
			_, err := c.Facts(within(t), []int{f.Rank}, ray.FactsRequest{})
			if !isActorError(rankClass(t, err, f.Rank)) {
				t.Errorf("facts: %v", err)
			}
			_, err = c.StartWorkers(within(t), []ray.StartSpec{shell(f.Rank, "true")})
			if !isActorError(rankClass(t, err, f.Rank)) {
				t.Errorf("a worker: %v", err)
			}
			w.lost(t, f.Rank)
		}},
}
