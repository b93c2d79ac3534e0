package ptx

type mbarriers struct{}

func (m *mbarriers) reset() {}

type bulkState struct{}

func (c *cta) mbarrierState(*warp) string { return "" }
func (d *decoder) copyArrive()            { d.failf("unknown instruction") }
