package libcuda

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// soname is how the driver is known to the dynamic linker. The name without the number is that of
// the stub library, which programs are linked with.
const soname = "libcuda.so.1"

// folders are where drivers are that the dynamic linker does not know: those that a container
// runtime puts in, a distribution's, and WSL's.
func folders() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
	list := []string{"/usr/local/nvidia/lib64"}
	if t := triplet[runtime.GOARCH]; t != "" {
		list = append(list, "/usr/lib/"+t)
	}
	return append(list, "/usr/lib64", "/usr/lib/wsl/lib")
}

// Find loads a library by the first of its names that there is: as the dynamic linker finds it,
// else from the folders where container runtimes, distributions and WSL put drivers. A path that
// was asked for is tried alone: another library in its place would hide a mistake. It returns the
// library's handle and the place where it was found; an error lists what was tried.
func Find(path string, names ...string) (handle uintptr, place string, err error) {
	return load(places(path, names...))
}

// Named is the library that a variable of the environment names, by its path or as the dynamic
// linker finds it, "" for none. The error says that it is "off".
func Named(variable string) (path string, err error) {
	if path = os.Getenv(variable); path == "off" {
		return "", errors.New(variable + " leaves it out")
	}
	return path, nil
}

// LookUp sets the addresses of a library's exports, 0 of those that it lacks, which it names.
func LookUp(handle uintptr, names []string, addresses []uintptr) (missing []string) {
	for e, name := range names {
		var err error // which only repeats the name
		if addresses[e], err = purego.Dlsym(handle, name); err != nil {
			addresses[e], missing = 0, append(missing, name)
		}
	}
	return missing
}

// places are what is tried, in this order.
func places(path string, names ...string) (list []string) {
	if path != "" {
		return []string{path}
	}
	for _, name := range names {
		list = append(list, name)
		for _, folder := range folders() {
			list = append(list, filepath.Join(folder, name))
		}
	}
	return list
}

// load loads the first library that can be, and returns its handle and the place.
func load(places []string) (handle uintptr, place string, err error) {
	// The reason for a failure is a variable of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var tried []string
	for _, place := range places {
		handle, err := loadOne(place)
		if err == nil {
			return handle, place, nil
		}
		tried = append(tried, fmt.Sprintf("%s (%v)", place, err))
	}
	return 0, "", fmt.Errorf("tried %s", strings.Join(tried, ", "))
}

func loadOne(place string) (uintptr, error) {
	if filepath.Base(place) != place {
		if _, err := os.Stat(place); errors.Is(err, fs.ErrNotExist) {
			return 0, errors.New("no such file")
		}
	}
	handle, err := purego.Dlopen(place, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, errors.New(strings.TrimPrefix(err.Error(), place+": "))
	}
	return handle, nil
}

// Text is the text of C that a function at an address returns of an argument: "" without either.
func Text(function, arg uintptr) string {
	if function == 0 {
		return ""
	}
	at, _, _ := purego.SyscallN(function, arg)
	return unix.BytePtrToString(*(**byte)(unsafe.Pointer(&at))) // of C, which no collector moves
}

// FileAt is the file whose code is at an address of this process, "" if that is not known.
func FileAt(address uintptr) string {
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		var from, to uintptr
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue // memory without a file
		}
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			continue
		}
		if from <= address && address < to {
			return strings.Join(fields[5:], " ")
		}
	}
	return ""
}
