// Package cublaslt is NVIDIA's library of products, libcublasLt.so, as a driver.CUBLASLt. The
// library is loaded when Open asks for it. Its functions return a cublasStatus_t; numbers of its
// enumerations are those of cublasLt.h, the same in versions 12 and 13.
package cublaslt

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
)

// Variable is a variable of the environment that names the library, by its path or as the dynamic
// linker finds it; "off" leaves it out.
const Variable = "EAGLERAY_CUBLASLT"

// sonames are how the library is known to the dynamic linker, the newest first.
var sonames = [...]string{"libcublasLt.so.13", "libcublasLt.so.12"}

// Oldest is the oldest version that Open accepts, 12.0.1: the first one that knows all
// architectures up to sm_90.
const Oldest = 120001

// export is a function of the library.
type export int

const (
	getVersion export = iota
	statusText
	create
	destroy
	descCreate
	descSet
	descDestroy
	layoutCreate
	layoutSet
	layoutDestroy
	preferenceCreate
	preferenceSet
	preferenceDestroy
	getHeuristic
	algoCheck
	matmul
	exports
)

// names are those by which the exports are looked up.
var names = [exports]string{
	getVersion:        "cublasLtGetVersion",
	statusText:        "cublasLtGetStatusString",
	create:            "cublasLtCreate",
	destroy:           "cublasLtDestroy",
	descCreate:        "cublasLtMatmulDescCreate",
	descSet:           "cublasLtMatmulDescSetAttribute",
	descDestroy:       "cublasLtMatmulDescDestroy",
	layoutCreate:      "cublasLtMatrixLayoutCreate",
	layoutSet:         "cublasLtMatrixLayoutSetAttribute",
	layoutDestroy:     "cublasLtMatrixLayoutDestroy",
	preferenceCreate:  "cublasLtMatmulPreferenceCreate",
	preferenceSet:     "cublasLtMatmulPreferenceSetAttribute",
	preferenceDestroy: "cublasLtMatmulPreferenceDestroy",
	getHeuristic:      "cublasLtMatmulAlgoGetHeuristic",
	algoCheck:         "cublasLtMatmulAlgoCheck",
	matmul:            "cublasLtMatmul",
}

// Values of cublasLt.h, cublas_api.h and library_types.h.
const (
	float32s, float16s, bfloat16s = 0, 2, 14 // cudaDataType
	computeFloat32                = 68       // CUBLAS_COMPUTE_32F
	transposed                    = 1        // CUBLAS_OP_T

	descTransA = 3 // CUBLASLT_MATMUL_DESC_TRANSA

	layoutType    = 0 // CUBLASLT_MATRIX_LAYOUT_…
	layoutRows    = 2
	layoutCols    = 3
	layoutLD      = 4
	layoutBatch   = 5
	layoutStrides = 6

	preferenceWorkspace  = 1 // CUBLASLT_MATMUL_PREF_…
	preferenceReductions = 3
	preferenceAlignA     = 5 // and three more, of B, C and D

	reductionsNone, reductionsAll = 0, 7 // CUBLASLT_REDUCTION_SCHEME_…
)

// heuristic is cublasLtMatmulHeuristicResult_t.
type heuristic struct {
	algo      driver.Algorithm
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// Library is the loaded library. It stays loaded until the process ends.
type Library struct {
	path      string
	version   int
	addresses [exports]uintptr
}

// Open loads the library at a path or by a name; without one it searches where drivers are, too
// (libcuda.Find). An error says what was tried, or what is wrong with what was found.
func Open(path string) (*Library, error) {
	handle, place, err := libcuda.Find(path, sonames[:]...)
	if err != nil {
		return nil, fmt.Errorf("no %s was found (%s names one): %w", sonames[0], Variable, err)
	}
	l := &Library{path: place}
	missing := libcuda.LookUp(handle, names[:], l.addresses[:])
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s lacks %s", l.path, strings.Join(missing, ", "))
	}
	version, _, _ := purego.SyscallN(l.addresses[getVersion])
	if l.version = int(version); l.version < Oldest {
		return nil, fmt.Errorf("%s is cuBLASLt %s, and %s is the oldest that is used", l.path,
			driver.CUBLASLtVersion(l.version), driver.CUBLASLtVersion(Oldest))
	}
	if file := libcuda.FileAt(l.addresses[getVersion]); file != "" {
		l.path = file
	}
	return l, nil
}

// OpenNamed is Open of what Variable names. An error may be that it leaves the library out.
func OpenNamed() (*Library, error) {
	path, err := libcuda.Named(Variable)
	if err != nil {
		return nil, err
	}
	return Open(path)
}

// Path is the file that was loaded, or the name it was found by where the system does not tell.
func (l *Library) Path() string { return l.path }

// Version implements driver.CUBLASLt.
func (l *Library) Version() int { return l.version }

// products are the library's handle of a device, and descriptions that calls fill in.
type products struct {
	l          *Library
	handle     uintptr
	desc       uintptr
	w, x, y    uintptr // layouts
	preference uintptr
	seen       driver.Product // what the descriptions are of, once described
	described  bool
	failed     error // of a description
}

// Open implements driver.CUBLASLt. The library uses the device's primary context, and the driver's
// is that.
func (l *Library) Open(c driver.Context) (driver.Products, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	x := &products{l: l}
	x.make(create, &x.handle, 0, 0, 0, 0)
	x.describeAll()
	_, err := libcuda.RepairSignals()
	if err = errors.Join(x.failed, err); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// describeAll makes the descriptions, of no product yet.
func (x *products) describeAll() {
	x.make(descCreate, &x.desc, computeFloat32, float32s, 0, 0)
	x.make(layoutCreate, &x.w, bfloat16s, 8, 8, 8)
	x.make(layoutCreate, &x.x, bfloat16s, 8, 8, 8)
	x.make(layoutCreate, &x.y, float32s, 8, 8, 8)
	x.make(preferenceCreate, &x.preference, 0, 0, 0, 0)
	x.set(descSet, x.desc, descTransA, 4, transposed)
	x.set(preferenceSet, x.preference, preferenceWorkspace, 8, driver.CUBLASLtWorkspace)
	for i := range 4 {
		x.set(preferenceSet, x.preference, preferenceAlignA+i, 4, driver.ProductAlign)
	}
}

// make has an export make what it writes the address of. Arguments behind its own are not looked
// at.
func (x *products) make(e export, to *uintptr, a, b, c, d uintptr) {
	if x.failed == nil {
		x.failed = x.l.failure(e, x.l.call(e, uintptr(unsafe.Pointer(to)), a, b, c, d))
	}
}

// set sets an attribute of so many bytes.
func (x *products) set(e export, of uintptr, attribute, bytes int, value uint64) {
	if x.failed == nil {
		x.failed = x.l.failure(e, x.l.call(e, of, uintptr(attribute),
			uintptr(unsafe.Pointer(&value)), uintptr(bytes)))
	}
}

// describe makes the descriptions those of a product. The library's matrices are by columns: W is
// In x Out there, transposed, x is In x Rows, and y Out x Rows.
func (x *products) describe(p *driver.Product) error {
	was := x.seen
	was.Add = p.Add
	if x.described && was == *p {
		return nil
	}
	x.failed, x.described = nil, false
	numbers := uint64(bfloat16s)
	if p.Float16 {
		numbers = float16s
	}
	for _, m := range [...]struct {
		layout             uintptr
		numbers            uint64
		rows, cols, ld, by int
	}{
		{x.w, numbers, p.In, p.Out, p.LDW, p.In},
		{x.x, numbers, p.In, p.Rows, p.LDX, p.In},
		{x.y, float32s, p.Out, p.Rows, p.LDY, p.Apart},
	} {
		x.set(layoutSet, m.layout, layoutType, 4, m.numbers)
		x.set(layoutSet, m.layout, layoutRows, 8, uint64(m.rows))
		x.set(layoutSet, m.layout, layoutCols, 8, uint64(m.cols))
		x.set(layoutSet, m.layout, layoutLD, 8, uint64(m.ld))
		x.set(layoutSet, m.layout, layoutBatch, 4, uint64(p.Chunks))
		x.set(layoutSet, m.layout, layoutStrides, 8, uint64(m.by))
	}
	reductions := uint64(reductionsNone)
	if p.Divided {
		reductions = reductionsAll
	}
	x.set(preferenceSet, x.preference, preferenceReductions, 4, reductions)
	x.seen, x.described = *p, x.failed == nil
	return x.failed
}

// mostAlgorithms is how many algorithms are asked for at most.
const mostAlgorithms = 16

// noneFits are codes of a product that the library has no algorithm for, or not this one
// (CUBLAS_STATUS_INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED).
func noneFits(code int32) bool { return code == 7 || code == 8 || code == 15 }

// Algorithms implements driver.Products.
func (x *products) Algorithms(p *driver.Product, most int) ([]driver.Algorithm, error) {
	if err := x.describe(p); err != nil {
		return nil, err
	}
	var found [mostAlgorithms]heuristic
	var n int32
	code := x.l.call(getHeuristic, x.handle, x.desc, x.w, x.x, x.y, x.y, x.preference,
		uintptr(min(most, mostAlgorithms)), uintptr(unsafe.Pointer(&found)),
		uintptr(unsafe.Pointer(&n)))
	if noneFits(code) {
		return nil, nil
	}
	if err := x.l.failure(getHeuristic, code); err != nil {
		return nil, err
	}
	var list []driver.Algorithm
	for _, h := range found[:max(0, min(int(n), mostAlgorithms))] {
		if h.state == 0 && h.workspace <= driver.CUBLASLtWorkspace {
			list = append(list, h.algo)
		}
	}
	return list, nil
}

// Fits implements driver.Products.
func (x *products) Fits(p *driver.Product, a *driver.Algorithm) bool {
	if x.describe(p) != nil {
		return false
	}
	var h heuristic
	code := x.l.call(algoCheck, x.handle, x.desc, x.w, x.x, x.y, x.y,
		uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(&h)))
	return code == 0 && h.workspace <= driver.CUBLASLtWorkspace
}

// Multiply implements driver.Products.
func (x *products) Multiply(p *driver.Product, a *driver.Algorithm, y, in, w, workspace driver.Ptr,
	s driver.Stream) error {
	if err := x.describe(p); err != nil {
		return err
	}
	alpha, beta := float32(1), float32(0)
	if p.Add {
		beta = 1
	}
	return x.l.failure(matmul, x.l.call(matmul, x.handle, x.desc,
		uintptr(unsafe.Pointer(&alpha)), uintptr(w), x.w, uintptr(in), x.x,
		uintptr(unsafe.Pointer(&beta)), uintptr(y), x.y, uintptr(y), x.y,
		uintptr(unsafe.Pointer(a)), uintptr(workspace), driver.CUBLASLtWorkspace, uintptr(s)))
}

// Close implements driver.Products.
func (x *products) Close() (err error) {
	for _, m := range [...]struct {
		by export
		of *uintptr
	}{
		{preferenceDestroy, &x.preference}, {layoutDestroy, &x.y}, {layoutDestroy, &x.x},
		{layoutDestroy, &x.w}, {descDestroy, &x.desc}, {destroy, &x.handle},
	} {
		if *m.of != 0 {
			err = cmp.Or(err, x.l.failure(m.by, x.l.call(m.by, *m.of)))
			*m.of = 0
		}
	}
	return err
}

// call calls an export and returns its cublasStatus_t. An argument that is the address of Go memory
// is written uintptr(unsafe.Pointer(&x)) in the call itself: the compiler then leaves x where it
// is, and alive, until the call returns.
//
//go:uintptrescapes
func (l *Library) call(e export, args ...uintptr) int32 {
	code, _, _ := purego.SyscallN(l.addresses[e], args...)
	return int32(code)
}

// failure is the error of a code, with the library's words for it.
func (l *Library) failure(e export, code int32) error {
	if code == 0 {
		return nil
	}
	text := cmp.Or(libcuda.Text(l.addresses[statusText], uintptr(code)), "unknown")
	return fmt.Errorf("%s of %s: %s (%d)", names[e], l.path, text, code)
}

var (
	_ driver.CUBLASLt = (*Library)(nil)
	_ driver.Products = (*products)(nil)
)
