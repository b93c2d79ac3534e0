package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// olmo3 is Olmo3ForCausalLM: OLMo 2's layers with a window in three of four, where positions are
// not scaled. Defaults: configuration_olmo3.py.
func olmo3() *family {
	fam := olmo2()
	fam.modelType, fam.architecture = "olmo3", "Olmo3ForCausalLM"
	fam.defaults.RopeTheta = 500000
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readBiasedAttention(f, c, d, 0)
		c.LocalTheta = c.RopeTheta
		if !readRopeOfLayers(f, c) {
			readRope(f, c)
			c.LocalTheta = c.RopeTheta
		}
		readWindows(f, c, plainWindow(f, 4096), func(i int) bool { return (i+1)%4 != 0 })
	}
	fam.build = func(s *stage) (architecture, error) {
		opt := olmoOptions()
		opt.rotaries = globalAndLocal
		opt.rotaryOf = func(layer int) int { return localLayer(s.cfg, layer) }
		return newDecoder(s, opt)
	}
	return fam
}
