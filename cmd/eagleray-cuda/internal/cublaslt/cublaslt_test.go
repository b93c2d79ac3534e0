package cublaslt

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/cublaslt/cublaslttest"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda/fakelib"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// fake is a library of cublaslttest in this process.
type fake struct{ *fakelib.Library }

// built builds and loads a library, whose test fails at a wrong argument.
func built(t *testing.T, without ...string) fake {
	t.Helper()
	path := cublaslttest.Build(t, t.TempDir(), without...)
	return fake{fakelib.Watch(t, path)}
}

// entered is a device that is made current.
type entered struct{ driver.Context }

func (entered) Enter() error { return nil }

// open opens the library's products.
func (f fake) open(t *testing.T) driver.Products {
	t.Helper()
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	if l.Path() != f.Path || driver.CUBLASLtVersion(l.Version()) != "13.1.0" {
		t.Errorf("version %d of %s", l.Version(), l.Path())
	}
	p, err := l.Open(entered{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMultiply computes products of both types, of one chunk and of several, whose rows are apart,
// and added to what is there.
func TestMultiply(t *testing.T) {
	f := built(t)
	x := f.open(t)
	memory, err := unix.Mmap(-1, 0, 3<<12, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	at := func(page int) (driver.Ptr, unsafe.Pointer) {
		p := unsafe.Pointer(&memory[page<<12])
		return driver.Ptr(uintptr(p)), p
	}
	for _, p := range []driver.Product{
		{Out: 3, In: 4, Rows: 2, Chunks: 1, LDW: 5, LDX: 6, LDY: 7},
		{Out: 3, In: 4, Rows: 2, Chunks: 1, LDW: 5, LDX: 6, LDY: 7, Add: true},
		{Float16: true, Out: 2, In: 3, Rows: 4, Chunks: 1, LDW: 3, LDX: 3, LDY: 2},
		{Out: 3, In: 4, Rows: 2, Chunks: 2, LDW: 8, LDX: 9, LDY: 3, Apart: 10},
	} {
		to16 := half.ToBF16
		if p.Float16 {
			to16 = half.ToF16
		}
		w, wp := at(0)
		in, ip := at(1)
		y, yp := at(2)
		ws, xs := unsafe.Slice((*uint16)(wp), 64), unsafe.Slice((*uint16)(ip), 64)
		ys := unsafe.Slice((*float32)(yp), 64)
		for i := range ws {
			ws[i], xs[i], ys[i] = to16(float32(i%7-3)), to16(float32(i%5-2)), 100
		}
		want := slices.Clone(ys)
		for c := range p.Chunks {
			for r := range p.Rows {
				for o := range p.Out {
					sum := float32(0)
					for k := range p.In {
						sum += float32((c*p.In+o*p.LDW+k)%7-3) * float32((c*p.In+r*p.LDX+k)%5-2)
					}
					if p.Add {
						sum += 100
					}
					want[c*p.Apart+r*p.LDY+o] = sum
				}
			}
		}
		list, err := x.Algorithms(&p, 6)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v: algorithms %v, %v", p, list, err)
		}
		if !x.Fits(&p, &list[0]) {
			t.Errorf("%+v: %v does not fit", p, list[0])
		}
		if err := x.Multiply(&p, &list[0], y, in, w, 1<<20, 77); err != nil {
			t.Error(err)
		}
		if !slices.Equal(ys, want) {
			t.Errorf("%+v: %v instead of %v", p, ys, want)
		}
	}
	divided := driver.Product{Out: 8, In: 8, Rows: 8, Chunks: 1, LDW: 8, LDX: 8, LDY: 8,
		Divided: true}
	if list, err := x.Algorithms(&divided, 6); err != nil || len(list) != 2 {
		t.Errorf("sums that may be divided: algorithms %v, %v", list, err)
	}
	for last, want := range []bool{true, true, false, false} {
		if got := x.Fits(&divided, &driver.Algorithm{7: uint64(last)}); got != want {
			t.Errorf("algorithm %d fits: %v", last, got)
		}
	}
	if err := x.Close(); err != nil || f.Call("test_made") != 0 {
		t.Errorf("%v; %d left", err, f.Call("test_made"))
	}
	if err := unix.Munmap(memory); err != nil {
		t.Error(err)
	}
}

// TestRefused names what is wrong, and the value.
func TestRefused(t *testing.T) {
	f := built(t)
	absent := filepath.Join(t.TempDir(), "absent.so")
	for _, c := range []struct{ path, codes, want string }{
		{absent, "", "no libcublasLt.so.13 was found (EAGLERAY_CUBLASLT names one): tried " +
			absent + " (no such file)"},
		{built(t, "WITHOUT_CHECK").Path, "", "lacks cublasLtMatmulAlgoCheck"},
		{f.Path, "version=110900", "PATH is cuBLASLt 11.9.0, and 12.0.1 is the oldest that is " +
			"used"},
	} {
		f.Codes(c.codes)
		_, err := Open(c.path)
		if c.path != f.Path && err != nil && strings.HasSuffix(err.Error(), c.want) {
			continue
		}
		f.Failed(c.codes, err, c.want)
	}
	f.Codes("")
	l, err := Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	for codes, want := range map[string]string{
		"cublasLtCreate=1": "cublasLtCreate of PATH: the library was not initialized (1)",
		"cublasLtMatmulPreferenceSetAttribute=3": "cublasLtMatmulPreferenceSetAttribute of PATH: " +
			"other error (3)",
	} {
		f.Codes(codes)
		_, err := l.Open(entered{})
		f.Failed(codes, err, want)
	}
	f.Codes("")
	if n := f.Call("test_made"); n != 0 {
		t.Errorf("%d left", n)
	}
	x := f.open(t)
	p := driver.Product{Out: 8, In: 8, Rows: 8, Chunks: 1, LDW: 8, LDX: 8, LDY: 8}
	f.Codes("cublasLtMatmulAlgoGetHeuristic=14")
	_, err = x.Algorithms(&p, 6)
	f.Failed("algorithms", err, "cublasLtMatmulAlgoGetHeuristic of PATH: other error (14)")
	f.Codes("cublasLtMatmulAlgoGetHeuristic=15")
	if list, err := x.Algorithms(&p, 6); list != nil || err != nil {
		t.Errorf("where nothing fits there are %v, %v", list, err)
	}
	f.Codes("cublasLtMatrixLayoutSetAttribute=7")
	p.Rows = 9
	_, err = x.Algorithms(&p, 6)
	f.Failed("a description", err, "cublasLtMatrixLayoutSetAttribute of PATH: other error (7)")
	f.Codes("")
	if list, err := x.Algorithms(&p, 6); len(list) != 1 || err != nil {
		t.Errorf("after an error there are %v, %v", list, err)
	}
	f.Codes("cublasLtMatmul=13")
	f.Failed("a product", x.Multiply(&p, &driver.Algorithm{7: 1}, 16, 16, 16, 16, 77),
		"cublasLtMatmul of PATH: other error (13)")
	f.Codes("")
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestLayouts compares structs with what C says of them.
func TestLayouts(t *testing.T) {
	f := built(t)
	h := heuristic{}
	want := []uint64{uint64(unsafe.Sizeof(h)), uint64(unsafe.Offsetof(h.workspace)),
		uint64(unsafe.Offsetof(h.state))}
	if got := f.Layout("layout", len(want)); !slices.Equal(got, want) {
		t.Errorf("%v instead of %v", want, got)
	}
}

// TestDescriptions has NVIDIA's library, where the environment names it, take all descriptions: for
// these it needs no GPU.
func TestDescriptions(t *testing.T) {
	path, _ := libcuda.Named(Variable)
	if path == "" {
		t.Skipf("skipped: descriptions of products to NVIDIA's library, which %s does not name",
			Variable)
	}
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	x := &products{l: l}
	x.describeAll()
	p := driver.Product{Out: 4096, In: 512, Rows: 300, Chunks: 8, LDW: 4096, LDX: 4096, LDY: 4096,
		Apart: 300 * 4096, Divided: true}
	if err := x.describe(&p); err != nil || x.failed != nil {
		t.Error(err, x.failed)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%s, version %s", l.Path(), driver.CUBLASLtVersion(l.Version()))
}
