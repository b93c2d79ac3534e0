package cpu

import "github.com/eagleray/eagleray/internal/compute"

// count adds the rows of the last route to the load of their experts, k of each row.
func (m *mixing) count(load *compute.ExpertLoad, k int, alone []int32) {
	switch {
	case load == nil:
	case load.Alone:
		for _, row := range alone {
			for _, e := range m.chosen[int(row)*k:][:k] {
				load.Rows[e]++
			}
		}
	default:
		for _, e := range m.chosen {
			load.Rows[e]++
		}
	}
}

// ExpertRows implements layers.Device.
func (d *Device) ExpertRows(load *compute.ExpertLoad) []int64 { return load.Rows }
