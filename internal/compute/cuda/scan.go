package cuda

import (
	"errors"

	"github.com/eagleray/eagleray/internal/compute"
)

// Scan makes dst what a selective scan makes of the rows of x (see compute.ScanArgs).
func (d *Device) Scan(c compute.Cache, layer int, b *compute.Batch, args *compute.ScanArgs,
	dst *compute.Tensor, x compute.View) {
	d.check(errors.New("selective scans are not computed on CUDA devices"))
}
