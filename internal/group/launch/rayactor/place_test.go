package rayactor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
)

// TestNoAnswer has an actor that Ray never starts: the deadline of the phase ends the wait, and
// says whose fault it is.
func TestNoAnswer(t *testing.T) {
	each(t, "pending", func(x *trial) {
		x.BlockActor(x.world-1, true)
		started := time.Now()
		_, err := x.start(x.t.Context(), nil)
		x.wants(err, "ray, phase identify: ", fmt.Sprintf("rank %d: ", x.world-1),
			"Pending: no answer", "GPU: 1 in bundle")
		if took := time.Since(started); took < identifyTimeout-2*time.Second ||
			took > identifyTimeout+time.Second {
			x.t.Errorf("known after %v", took)
		}
		if line := fmt.Sprintf("%d     %d       -     0    failed: ", x.world-1,
			x.world-1); !strings.Contains(x.log.String(), line) {
			x.t.Errorf("%s\nno line of the rank in the table", &x.log)
		}
		x.end()
	})
}

// TestPlace waits for resources that others hold.
func TestPlace(t *testing.T) {
	hold := func(x *trial) string {
		return x.AddGroup("", ray.Group{Name: "theirs", Bundles: []ray.Bundle{
			{NodeID: "node1", Resources: map[string]float64{"GPU": 2}},
			{NodeID: "node2", Resources: map[string]float64{"GPU": 2}}}})
	}
	each(t, "deadline", func(x *trial) {
		theirs := hold(x)
		started := time.Now()
		_, err := x.start(x.t.Context(),
			func(o *Options) { o.PlacementTimeout = 100 * time.Second })
		x.wants(err, "ray, phase place: no place after 1m40s (--ray-placement-timeout):",
			fmt.Sprintf("wanted: %s of {GPU: 1}; 0 of %d fit", count(x.world, "bundle"), x.world),
			"GPU 0 free of 2",
			"others hold what is missing")
		if took := time.Since(started); took < 100*time.Second || took > 102*time.Second {
			x.t.Errorf("given up after %v", took)
		}
		for _, seconds := range []string{"seconds=10 ", "seconds=20 ", "seconds=40 ",
			"seconds=80 "} {
			if strings.Count(x.log.String(), seconds) != 1 {
				x.t.Errorf("%s\nnot one report with %s", &x.log, seconds)
			}
		}
		x.end(theirs)
	})
	each(t, "others end", func(x *trial) {
		// As with Ray, what they held is back only a second later.
		x.Settle = time.Second
		theirs := hold(x)
		time.AfterFunc(time.Minute, func() { x.RemoveGroup(theirs) })
		started := time.Now()
		if _, err := x.start(x.t.Context(), nil); err != nil {
			x.t.Fatal(err)
		}
		if took := time.Since(started); took < 61*time.Second || took > 62*time.Second {
			x.t.Errorf("placed after %v", took)
		}
		x.end()
	})
	each(t, "a node joins", func(x *trial) {
		theirs := hold(x)
		time.AfterFunc(5*time.Second, func() {
			x.AddNode(ray.Node{ID: "node3", IP: "10.0.0.3",
				Resources: map[string]float64{"GPU": 4}})
		})
		workers, err := x.start(x.t.Context(), nil)
		if err != nil || workers[0].Node != "10.0.0.3" {
			x.t.Errorf("workers %+v, %v", workers, err)
		}
		x.end(theirs)
	})
	each(t, "never", func(x *trial) {
		started := time.Now()
		_, err := x.start(x.t.Context(), func(o *Options) { o.DeviceKey = "TPU" })
		x.wants(err, "the cluster can never hold the group",
			"missing: "+count(x.world, "bundle")+" of {TPU: 1}",
			"--ray-placement-timeout")
		if took := time.Since(started); took > 3*time.Second {
			x.t.Errorf("known after %v", took)
		}
		x.end()
	})
	each(t, "resources of an older start", func(x *trial) {
		x.Settle = time.Second
		for range 2 {
			if _, err := x.start(x.t.Context(), nil); err != nil {
				x.t.Fatal(err)
			}
			if err := x.l.Stop(context.Background(), nil); err != nil {
				x.t.Error(err)
			}
		}
		if strings.Contains(x.log.String(), "waiting for the placement group") {
			x.t.Errorf("%s\na shortage was reported that is none", &x.log)
		}
		x.end()
	})
	each(t, "adopted", func(x *trial) {
		var of []ray.Bundle
		for rank := range x.world {
			of = append(of, ray.Bundle{NodeID: fmt.Sprintf("node%d", 1+rank/2),
				Resources: map[string]float64{"GPU": 1}})
		}
		theirs := x.AddGroup("", ray.Group{Bundles: of})
		workers, err := x.start(x.t.Context(), func(o *Options) { o.PlacementGroup = theirs })
		if err != nil || len(workers) != x.world || len(x.Groups()) != 1 {
			x.t.Errorf("workers %+v, groups %+v, %v", workers, x.Groups(), err)
		}
		x.end(theirs)
		if len(x.Groups()) != 1 {
			x.t.Error("the adopted group was removed")
		}
	})
}
