//go:build !amd64

package ptx

// hostOps are the functions of this machine's vector instructions: none are written.
func hostOps() *laneOps { return nil }
