package ptx

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestKernelsParse(t *testing.T) {
	names, _ := filepath.Glob("../kernels/ptx/*.ptx.gz")
	for _, n := range names {
		f, _ := os.Open(n)
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Error(n, err)
			continue
		}
		b, _ := io.ReadAll(z)
		m, err := Parse(b)
		if err != nil {
			t.Error(n, err)
			continue
		}
		for _, k := range m.Kernels() {
			kk := m.Kernel(k)
			t.Log(n, k, kk.Instructions(), kk.StaticShared, kk.Local, kk.regs32, kk.regs64, kk.preds)
		}
	}
}
