// Package kernels has the CUDA device's kernels: CUDA C, the PTX that NVRTC made of it, which the
// machine of package ptx executes in tests, cubins that ptxas made of that for some architectures,
// and the Go mirror of their parameters. make kernels makes the generated files again;
// resources.txt is what they take on each architecture.
package kernels

import (
	"archive/tar"
	"bytes"
	_ "embed" // for the archives
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ulikunitz/xz"
)

// images are the PTX of all files, cubins those of all architectures: sm_90a/gemm is a path.
var (
	//go:embed ptx.tar.xz
	images []byte
	//go:embed cubins.tar.xz
	cubins []byte
)

// OldestMajor is the compute capability, before the point, of the oldest devices that the kernels
// are for: they need its matrix instructions of bfloat16, and its asynchronous copies.
const OldestMajor = 8

// ID is a kernel.
type ID int

// Name is what the kernel is called in its file.
func (k ID) Name() string { return names[k] }

// File is the name of the file that the kernel is in.
func (k ID) File() string { return files[k] }

// F16 is the kernel that computes in float16 what one does in bfloat16; others are what they are.
func (k ID) F16() ID {
	if like := inF16[k]; like != 0 {
		return like
	}
	return k
}

// Fits says whether devices of a compute capability have the kernel: one of a file that is named
// for an architecture is for that alone.
func (k ID) Fits(major, minor int) bool {
	_, arch, only := strings.Cut(k.File(), ".")
	return !only || fits(arch, major, minor) > 0
}

// Files lists the files of the kernels that devices of a compute capability have.
func Files(major, minor int) (list []string) {
	for k := range Count {
		if k.Fits(major, minor) {
			list = append(list, k.File())
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// PTX is a file's kernels, for any architecture from sm_80 on, or the one that the file is named
// for; it ends with a zero byte, as drivers want it.
func PTX(file string) ([]byte, error) {
	texts.once.Do(func() {
		texts.of = map[string][]byte{}
		texts.err = visit(images, func(name string, r io.Reader) (err error) {
			texts.of[name], err = io.ReadAll(r)
			return err
		})
	})
	text, ok := texts.of[file]
	if !ok {
		return nil, errors.Join(fmt.Errorf("no PTX of %s", file), texts.err)
	}
	return append(slices.Clip(text), 0), nil
}

// texts are the PTX of all files, which few programs want.
var texts struct {
	once sync.Once
	of   map[string][]byte
	err  error
}

// visit calls f with the files of an archive.
func visit(archive []byte, f func(name string, r io.Reader) error) error {
	r, err := xz.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("kernels: %w", err)
	}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(h.Name, t)
		}
		if err != nil {
			return fmt.Errorf("kernels: %w", err)
		}
	}
}

// Cubins are the machine code of all files that is best for devices of a compute capability, by
// file. There are none for some devices, of which drivers compile PTX.
func Cubins(major, minor int) (map[string][]byte, error) {
	list, best := map[string][]byte{}, 1
	err := visit(cubins, func(name string, r io.Reader) (err error) {
		fit := fits(path.Dir(name), major, minor)
		if fit < best {
			return nil
		}
		if fit > best {
			clear(list)
			best = fit
		}
		list[path.Base(name)], err = io.ReadAll(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// fits is how much of a compute capability a cubin's architecture has, 0 where a device of that
// does not execute it: those with an "a" are for one alone, others also for later ones of the same
// major number (CUDA C++ Programming Guide, "Binary Compatibility").
func fits(arch string, major, minor int) int {
	number, only := strings.CutSuffix(strings.TrimPrefix(arch, "sm_"), "a")
	n, err := strconv.Atoi(number)
	device := 10*major + minor
	if err != nil || n > device || n/10 != major || only && n != device {
		return 0
	}
	return n
}
