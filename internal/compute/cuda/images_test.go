package cuda_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// loading is a driver that counts the images that it is given, and answers machine code with an
// error, or takes it as if it were the PTX that it was made of.
type loading struct {
	*double.Driver
	code        int
	cubins, ptx int
}

func (d *loading) Open(ordinal int) (driver.Context, error) {
	c, err := d.Driver.Open(ordinal)
	return loadingContext{c, d}, err
}

type loadingContext struct {
	driver.Context
	d *loading
}

func (c loadingContext) Load(image []byte) (driver.Module, error) {
	if !bytes.HasPrefix(image, []byte("\x7fELF")) {
		c.d.ptx++
		return c.Context.Load(image)
	}
	c.d.cubins++
	if c.d.code != 0 {
		return 0, &driver.Error{Call: "cuModuleLoadDataEx", Code: c.d.code}
	}
	cubins, err := kernels.Cubins(9, 0)
	if err != nil {
		return 0, err
	}
	for file, cubin := range cubins {
		if bytes.Equal(cubin, image) {
			text, err := kernels.PTX(file)
			if err != nil {
				return 0, err
			}
			return c.Context.Load(text)
		}
	}
	return 0, errors.New("not machine code of sm_90a")
}

// TestImages wants machine code to be loaded where there is some that the driver takes, else PTX.
func TestImages(t *testing.T) {
	files, others := len(kernels.Files(9, 0)), len(kernels.Files(12, 1))
	for name, c := range map[string]struct {
		loading
		asPTX       bool
		cubins, ptx int
		fails       bool
	}{
		"machine code": {cubins: files},
		"refused": {loading: loading{code: driver.NoBinaryForGPU}, cubins: files,
			ptx: files},
		"no memory": {loading: loading{code: driver.OutOfMemory}, cubins: 1, fails: true},
		"asked for": {asPTX: true, ptx: files},
		"another architecture": {loading: loading{Driver: &double.Driver{Info: driver.Info{
			Name: "later", Major: 12, Minor: 1, Multiprocessors: 4, Shared: 99 << 10}}},
			ptx: others},
	} {
		t.Run(name, func(t *testing.T) {
			drv := c.loading
			if drv.Driver == nil {
				drv.Driver = &double.Driver{}
			}
			d, err := cuda.New(cuda.Options{Driver: &drv, DType: compute.BFloat16, Threads: 1,
				PTX: c.asPTX})
			if err == nil {
				d.Close()
			}
			if drv.cubins != c.cubins || drv.ptx != c.ptx || (err != nil) != c.fails {
				t.Errorf("%d cubins, %d times PTX, %v", drv.cubins, drv.ptx, err)
			}
		})
	}
}
