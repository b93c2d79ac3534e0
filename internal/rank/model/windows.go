package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// readWindows resolves sliding_window, use_sliding_window, max_window_layers and layer_types to a
// window per layer. window is the one in use, 0 for none; sliding tells whether layer i has it
// where layer_types does not say.
func readWindows(f *checkpoint.Fields, c *Config, window int, sliding func(i int) bool) {
	types := textOfLayers(f, c, "layer_types")
	if f.Err() != nil {
		return
	}
	c.Windows = make([]int, c.Layers)
	limited := "sliding_attention"
	if c.Chunked {
		limited = "chunked_attention"
	}
	for i := range c.Windows {
		slides := sliding(i)
		if types != nil {
			switch kind := types[i]; {
			case kind == "full_attention", kind == "attention",
				kind == "indexed_attention" && c.Selected > 0:
				slides = false
			case kind == limited:
				slides = true
			default:
				f.Fail(checkpoint.ErrUnsupported, "layer_types", "has %s",
					checkpoint.Short(types[i]))
				return
			}
		}
		if !slides {
			continue
		}
		if window == 0 && types != nil {
			f.Fail(checkpoint.ErrMalformed, "layer_types",
				"has %s, but no window is in use", limited)
			return
		}
		c.Windows[i] = window
		c.SlidingWindow = window
	}
}

// textOfLayers reads a list of a text for each layer, nil where there is none.
func textOfLayers(f *checkpoint.Fields, c *Config, key string) []string {
	list := f.Texts(key)
	if list != nil && len(list) != c.Layers {
		f.Fail(checkpoint.ErrMalformed, key, "has %d entries for %d layers", len(list), c.Layers)
	}
	return list
}

// plainWindow reads sliding_window; null and 0 mean none.
func plainWindow(f *checkpoint.Fields, def int) int {
	if !f.Has("sliding_window") {
		return def
	}
	return f.Nullable("sliding_window", 0, 0, checkpoint.MaxDim)
}

// qwenWindow is plainWindow behind the switch use_sliding_window.
func qwenWindow(f *checkpoint.Fields) int {
	if !f.Flag("use_sliding_window", false) {
		return 0
	}
	return plainWindow(f, 4096)
}

func noLayer(int) bool    { return false }
func everyLayer(int) bool { return true }

// upperLayers holds from max_window_layers on.
func upperLayers(f *checkpoint.Fields) func(i int) bool {
	from := windowLayers(f)
	return func(i int) bool { return i >= from }
}

// lowerEvenLayers holds for every other layer before max_window_layers.
func lowerEvenLayers(f *checkpoint.Fields) func(i int) bool {
	to := windowLayers(f)
	return func(i int) bool { return i < to && i%2 == 0 }
}

func windowLayers(f *checkpoint.Fields) int {
	return f.Integer("max_window_layers", 28, 0, checkpoint.MaxDim)
}
