package fleetbench

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/ops/plot"
)

// PlotExperts draws what a step takes over the number of ranks, and what each rank sends in it, all
// logarithmic, as SVG.
func PlotExperts(r *ExpertReport) []byte {
	titles := []string{"time", "bytes", "messages"}
	panels := []panel{
		{title: fmt.Sprintf("Step of %s, %d rows a rank", r.Name, r.Rows), unit: duration},
		{title: "Bytes sent in a step: by a rank, and by all", unit: size},
		{title: "Messages sent in a step", unit: func(v float64) string { return fmt.Sprint(v) }},
	}
	drawn := map[string]string{"experts": plot.Green, "dispatch": plot.Sky, "combine": plot.Blue,
		"step": plot.Vermillion, "within node": plot.Orange, "between nodes": plot.Pink,
		"of the fleet": plot.Vermillion}
	for _, figure := range expertFigures() {
		c := curve{name: figure.name, colour: drawn[figure.name]}
		for i := range r.Fleets {
			if v := figure.of(&r.Fleets[i]); v > 0 {
				c.points = append(c.points, point{float64(r.Fleets[i].Ranks), v})
			}
		}
		for i, unit := range titles {
			if unit == figure.unit && len(c.points) > 0 {
				panels[i].curves = append(panels[i].curves, c)
			}
		}
	}
	var full []panel
	for _, p := range panels {
		if len(p.curves) > 0 { // one rank sends nothing
			full = append(full, p)
		}
	}
	return draw(full)
}

// size spells bytes that are a power of ten.
func size(bytes float64) string {
	for _, unit := range []struct {
		least float64
		name  string
	}{{1e15, "PB"}, {1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if bytes >= unit.least {
			return fmt.Sprintf("%.0f %s", bytes/unit.least, unit.name)
		}
	}
	return fmt.Sprintf("%.0f B", bytes)
}
