package model_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/layers/layerstest"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts of calls anew")

// TestCalls compares what a step asks of its device, in which order, with a transcript of each
// family: of one rank alone, and of the first of two. -rewrite writes them anew.
func TestCalls(t *testing.T) {
	fixtures := map[string]fixture{}
	for _, name := range allNames {
		fixtures[name] = shipped(name)
	}
	for _, name := range encoderNames {
		fixtures[name] = encoder(name)
	}
	for name, f := range fixtures {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for _, size := range []int{1, 2} {
				cfg, weights := f.open(t)
				if model.CheckShard(cfg, size) != nil {
					continue
				}
				d := layerstest.New()
				defer d.Close()
				m, err := model.Load(cfg, model.FromCheckpoint(weights), d, model.Options{
					Group: layers.Group{Size: size, Comm: layerstest.Group{Device: d}},
					Stage: model.Stage{To: cfg.Layers}})
				if err != nil {
					t.Fatal(err)
				}
				if err := forward(m, batch(piece{tokens: prompt(3)}),
					layerstest.Cache{}); err != nil {
					t.Fatal(err)
				}
				if cfg.Encoder {
					_, err = m.Final([]int32{2})
				} else {
					_, err = m.Logits([]int32{2})
				}
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&got, "tensor parallel size %d:\n%s\n", size,
					strings.Join(d.Calls, "\n"))
				m.Close()
			}
			file := filepath.Join("testdata", "calls", name+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("calls differ from %s; if that is meant, run with -rewrite. They are:\n%s",
					file,
					got.String())
			}
		})
	}
}
