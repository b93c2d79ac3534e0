//go:build !amd64

package kernelbench

import "github.com/eagleray/eagleray/internal/compute/cpu/isa"

// instructionOf is none: there are only kernels in portable Go.
func instructionOf(isa.ISA, bool) *instruction { return nil }
