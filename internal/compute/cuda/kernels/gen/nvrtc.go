package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// nvrtc is NVIDIA's compiler of CUDA C to PTX, which needs no driver and no GPU.
type nvrtc struct{ calls map[string]uintptr }

// openNVRTC opens the library in a folder: first its built-in functions, which it would look for in
// the system's folders only.
func openNVRTC(dir string) (*nvrtc, error) {
	var library uintptr
	for _, pattern := range []string{"libnvrtc-builtins.so.*", "libnvrtc.so.*"} {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern))
		if len(paths) == 0 {
			return nil, fmt.Errorf("no %s in %s", pattern, dir)
		}
		path, err := filepath.Abs(paths[0])
		if err != nil {
			return nil, err
		}
		if library, err = purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
			return nil, err
		}
	}
	n := &nvrtc{calls: map[string]uintptr{}}
	for _, name := range []string{"CreateProgram", "CompileProgram", "DestroyProgram",
		"GetProgramLogSize", "GetProgramLog", "GetPTXSize", "GetPTX"} {
		address, err := purego.Dlsym(library, "nvrtc"+name)
		if err != nil {
			return nil, err
		}
		n.calls[name] = address
	}
	return n, nil
}

func (n *nvrtc) call(name string, args ...uintptr) int32 {
	code, _, _ := purego.SyscallN(n.calls[name], args...)
	return int32(code)
}

// texts are strings as C has them, pinned.
type texts struct {
	pin  runtime.Pinner
	list []*byte
}

func (t *texts) add(s string) *byte {
	b := append([]byte(s), 0)
	t.pin.Pin(&b[0])
	t.list = append(t.list, &b[0])
	return &b[0]
}

// array is where the pointers to all of them are, 0 without any.
func (t *texts) array() uintptr {
	if len(t.list) == 0 {
		return 0
	}
	t.pin.Pin(&t.list[0])
	return uintptr(unsafe.Pointer(&t.list[0]))
}

// flags are those that a file is compiled with.
func flags(name string) []string {
	return []string{"--gpu-architecture=" + target(strings.TrimSuffix(name, ".cu")), "--std=c++17",
		"-default-device"}
}

// compile makes PTX of a file. An error has the compiler's words.
func (n *nvrtc) compile(name string, text []byte, headers map[string][]byte) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var bodies, names, options, own texts
	for _, t := range []*texts{&bodies, &names, &options, &own} {
		defer t.pin.Unpin()
	}
	for _, h := range sorted(headers) {
		names.add(h)
		bodies.add(string(headers[h]))
	}
	for _, o := range flags(name) {
		options.add(o)
	}
	var program uintptr
	own.pin.Pin(&program)
	if code := n.call("CreateProgram", uintptr(unsafe.Pointer(&program)),
		uintptr(unsafe.Pointer(own.add(string(text)))), uintptr(unsafe.Pointer(own.add(name))),
		uintptr(len(headers)), bodies.array(), names.array()); code != 0 {
		return nil, fmt.Errorf("nvrtc %d for %s", code, name)
	}
	defer n.call("DestroyProgram", uintptr(unsafe.Pointer(&program)))
	code := n.call("CompileProgram", program, uintptr(len(options.list)), options.array())
	log, err := n.text(program, "GetProgramLog")
	if said := strings.TrimSpace(strings.TrimRight(string(log), "\x00")); code != 0 || said != "" {
		return nil, fmt.Errorf("nvrtc %d for %s:\n%s", code, name, said)
	}
	if err != nil {
		return nil, err
	}
	return n.text(program, "GetPTX")
}

// text is what a call and the one for its size return.
func (n *nvrtc) text(program uintptr, call string) ([]byte, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	size := new(uintptr)
	pin.Pin(size)
	if n.call(call+"Size", program, uintptr(unsafe.Pointer(size))) != 0 || *size == 0 {
		return nil, errors.New(call + "Size failed")
	}
	b := make([]byte, *size)
	pin.Pin(&b[0])
	if n.call(call, program, uintptr(unsafe.Pointer(&b[0]))) != 0 {
		return nil, errors.New(call + " failed")
	}
	return b, nil
}
