package rayactor

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/link/layout"
)

func TestActorName(t *testing.T) {
	for _, c := range []struct {
		instance string
		rank     int
		layout   layout.Layout
		want     string
		err      string
	}{
		{instance: "ab12", rank: 0, want: "eagleray_ab12_r0"},
		{instance: "ab12", rank: 0, layout: layout.Layout{TP: 1, PP: 1, PCP: 1},
			want: "eagleray_ab12_r0"},
		{instance: "ab12", rank: 3, layout: layout.Layout{TP: 4}, want: "eagleray_ab12_r3_TP3"},
		{instance: "ab12", rank: 1, layout: layout.Layout{PP: 2}, want: "eagleray_ab12_r1_PP1"},
		{instance: "ab12", rank: 1, layout: layout.Layout{PCP: 2}, want: "eagleray_ab12_r1_PCP1"},
		{instance: "ab12", rank: 2, layout: layout.Layout{TP: 2, PP: 2},
			want: "eagleray_ab12_r2_TP0_PP1"},
		// The output rank, world − TP·PCP, is the first of the last pipeline stage.
		{instance: "a.b-c", rank: 18, layout: layout.Layout{TP: 3, PP: 4, PCP: 2},
			want: "eagleray_a.b-c_r18_TP0_PP3_PCP0"},
		{instance: "a.b-c", rank: 23, layout: layout.Layout{TP: 3, PP: 4, PCP: 2},
			want: "eagleray_a.b-c_r23_TP2_PP3_PCP1"},
		{instance: "a.b-c", rank: 4, layout: layout.Layout{TP: 3, PP: 4, PCP: 2},
			want: "eagleray_a.b-c_r4_TP1_PP0_PCP1"},
		{instance: strings.Repeat("x", 64), want: "eagleray_" + strings.Repeat("x", 64) + "_r0"},
		{instance: strings.Repeat("x", 65), err: "65 characters, not 1 to 64"},
		{instance: "", err: `instance name "" has 0 characters`},
		{instance: "a_b", err: `"a_b" has '_'`},
		{instance: "a/b", err: `has '/'`},
		{instance: "é", err: `has 'é'`},
		{instance: "a\n", err: `has '\n'`},
		{instance: "ab", rank: 1, err: "rank 1 is not in a world of 1"},
		{instance: "ab", rank: -1, layout: layout.Layout{TP: 2}, err: "rank -1"},
		{instance: "ab", rank: 4, layout: layout.Layout{TP: 2, PP: 2},
			err: "rank 4 is not in a world of 4 (TP 2 × PP 2)"},
	} {
		got, err := ActorName(c.instance, c.rank, c.layout)
		wantError(t, err, c.err)
		if got != c.want {
			t.Errorf("ActorName(%q, %d, %v) = %q, want %q", c.instance, c.rank, c.layout, got,
				c.want)
		}
	}
}

func TestActorNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	sizes := layout.Layout{TP: 3, PP: 2, PCP: 2}
	for rank := range 12 {
		name, err := ActorName("i", rank, sizes)
		if err != nil {
			t.Fatal(err)
		}
		_, place, _ := strings.Cut(name, "_TP")
		if seen[place] {
			t.Errorf("rank %d has the place %s of another", rank, place)
		}
		seen[place] = true
	}
}
