package libcuda

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// Attributes of functions, of CUfunction_attribute.
const (
	staticShared  = 1
	localBytes    = 3
	registers     = 4
	dynamicShared = 8
)

// kernels are the functions of the loaded modules, by which errors name them.
type kernels struct {
	mu  sync.Mutex
	all map[driver.Function]string
}

func (k *kernels) add(f driver.Function, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[driver.Function]string{}
	}
	k.all[f] = name
}

// name is what a function is called in errors.
func (k *kernels) name(f driver.Function) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if name, known := k.all[f]; known {
		return "kernel " + name
	}
	return fmt.Sprintf("unknown kernel %#x", uintptr(f))
}

// Options of a compilation, of CUjit_option, in the order of their values.
const (
	infoLog      = 3
	infoLogSize  = 4
	errorLog     = 5
	errorLogSize = 6
)

// jit is the options of a compilation, and the logs that it writes.
type jit struct {
	options [4]uint32
	// values are void* in C: addresses of the logs, and their sizes in the place of addresses. The
	// driver puts in the sizes how many bytes it wrote.
	values      [4]uintptr
	info, error [16 << 10]byte
}

func newJIT() *jit {
	j := &jit{options: [...]uint32{infoLog, infoLogSize, errorLog, errorLogSize}}
	j.values = [...]uintptr{
		uintptr(unsafe.Pointer(&j.info)), uintptr(len(j.info)),
		uintptr(unsafe.Pointer(&j.error)), uintptr(len(j.error)),
	}
	return j
}

// log is what the compiler said: its errors, else its other words.
func (j *jit) log() string {
	for _, part := range [][]byte{
		j.error[:min(j.values[3], uintptr(len(j.error)))],
		j.info[:min(j.values[1], uintptr(len(j.info)))],
	} {
		text, _, _ := bytes.Cut(part, []byte{0})
		if s := sentence(string(text)); s != "" {
			return s
		}
	}
	return ""
}

// checkImage refuses what the driver would read beyond its end: of a text it knows no length, only
// that a zero byte ends it.
func checkImage(image []byte) error {
	binary := bytes.HasPrefix(image, []byte("\x7fELF")) ||
		bytes.HasPrefix(image, []byte{0x50, 0xed, 0x55, 0xba}) // several cubins in one
	switch {
	case len(image) == 0:
		return errors.New("the image of a module is empty")
	case !binary && image[len(image)-1] != 0:
		return fmt.Errorf("PTX of %d bytes ends with byte %d and not with a zero byte", len(image),
			image[len(image)-1])
	}
	return nil
}

// Load reads a module: a cubin, or PTX, which has to end with a zero byte and is compiled for the
// device, which may take seconds. The error has what the compiler said.
func (c *context) Load(image []byte) (driver.Module, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	if err := checkImage(image); err != nil {
		return 0, err
	}
	var m driver.Module
	j := newJIT()
	code := c.library.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m)),
		uintptr(unsafe.Pointer(unsafe.SliceData(image))), uintptr(len(j.options)),
		uintptr(unsafe.Pointer(&j.options)), uintptr(unsafe.Pointer(&j.values)))
	if code != 0 {
		return 0, c.failed(cuModuleLoadDataEx, code, j.log())
	}
	c.modules.add(m)
	return m, nil
}

// Function finds a kernel of a module by its name.
func (c *context) Function(m driver.Module, name string) (driver.Function, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	if name == "" || strings.IndexByte(name, 0) >= 0 {
		return 0, fmt.Errorf("%q is no name of a kernel", name)
	}
	var f driver.Function
	text := append([]byte(name), 0)
	code := c.library.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m),
		uintptr(unsafe.Pointer(unsafe.SliceData(text))))
	if code != 0 {
		return 0, c.failed(cuModuleGetFunction, code, "kernel "+name)
	}
	c.kernels.add(f, name)
	return f, nil
}

// AllowShared lets a kernel have so much dynamic shared memory: more than 48 KiB need it. The error
// says what the device has.
func (c *context) AllowShared(f driver.Function, bytes int) error {
	if err := c.ended(); err != nil {
		return err
	}
	code := c.library.call(cuFuncSetAttribute, uintptr(f), dynamicShared, uintptr(bytes))
	if code == 0 {
		return nil
	}
	known := fmt.Sprintf("%s, %d bytes of shared memory", c.kernels.name(f), bytes)
	if most, err := c.library.attribute(sharedBytesOptIn, c.device); err == nil {
		known += fmt.Sprintf(" of the %d that a block may have", most)
	}
	return c.failed(cuFuncSetAttribute, code, known)
}

// Resources are a kernel's registers of a thread, its bytes of static shared memory, and its bytes
// of local memory of a thread: none is what a kernel without spills has.
func (c *context) Resources(f driver.Function) (perThread, shared, local int, err error) {
	for _, a := range []struct {
		attribute uintptr
		to        *int
	}{{registers, &perThread}, {staticShared, &shared}, {localBytes, &local}} {
		if *a.to, err = c.resource(f, a.attribute); err != nil {
			return 0, 0, 0, err
		}
	}
	return perThread, shared, local, nil
}

func (c *context) resource(f driver.Function, attribute uintptr) (int, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var value int32
	code := c.library.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(&value)), attribute,
		uintptr(f))
	if code != 0 {
		return 0, c.failed(cuFuncGetAttribute, code, c.kernels.name(f))
	}
	return int(value), nil
}
