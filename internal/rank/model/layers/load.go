package layers

import "github.com/eagleray/eagleray/internal/compute"

// LayerLoad is how many rows the router of a layer has sent to each expert.
type LayerLoad struct {
	Layer int
	Rows  []int64
}

// counting is the load of a layer that a device counts.
type counting struct {
	layer int
	load  *compute.ExpertLoad
}

// Layer says that the layers that are made next are those of the model's layer.
func (l *Loader) Layer(layer int) { l.within.Layer = layer }

// expertLoad makes what the rows of a mixture are counted in.
func (l *Loader) expertLoad(experts int) *compute.ExpertLoad {
	if l.scale != nil {
		return nil
	}
	p := l.group.PCP
	load := &compute.ExpertLoad{Rows: make([]int64, experts),
		Alone: p != nil && p.Rank > 0}
	l.loads = append(l.loads, counting{l.within.Layer, load})
	return load
}

// Loads are the loads of the mixtures that were made, as steps have counted them.
// The rows that several ranks compute alike are counted on the first of those that divide long
// prompts, and on every one of those that divide layers.
func (l *Loader) Loads() []LayerLoad {
	list := make([]LayerLoad, 0, len(l.loads))
	for _, c := range l.loads {
		list = append(list, LayerLoad{c.layer, l.dev.ExpertRows(c.load)})
	}
	return list
}
