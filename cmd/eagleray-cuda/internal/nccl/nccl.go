// Package nccl is NVIDIA's library of collectives, libnccl.so.2, as a driver.NCCL. The library is
// loaded when Open asks for it. Its functions return a code; those of a communicator never wait
// (ncclConfig_t.blocking is 0), so that another goroutine can abort it at any time.
package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
)

// Variable is a variable of the environment that names the library, by its path or as the dynamic
// linker finds it, and so allows it between machines, where it does not encrypt. "off" leaves it
// out.
const Variable = "EAGLERAY_NCCL"

// soname is how the library is known to the dynamic linker.
const soname = "libnccl.so.2"

// Oldest is the oldest version that Open accepts, 2.18.1: the first whose configuration has all
// fields of this package's.
const Oldest = 21801

// export is a function of the library.
type export int

const (
	getVersion export = iota
	getUniqueID
	errorText
	lastError
	commInitRankConfig
	commGetAsyncError
	commAbort
	allGather
	groupStart
	groupEnd
	send
	receive
	exports
)

// names are those by which the exports are looked up.
var names = [exports]string{
	getVersion:         "ncclGetVersion",
	getUniqueID:        "ncclGetUniqueId",
	errorText:          "ncclGetErrorString",
	lastError:          "ncclGetLastError",
	commInitRankConfig: "ncclCommInitRankConfig",
	commGetAsyncError:  "ncclCommGetAsyncError",
	commAbort:          "ncclCommAbort",
	allGather:          "ncclAllGather",
	groupStart:         "ncclGroupStart",
	groupEnd:           "ncclGroupEnd",
	send:               "ncclSend",
	receive:            "ncclRecv",
}

const (
	float32s   = 7 // ncclFloat32
	inProgress = 7 // ncclInProgress
)

// config is ncclConfig_t as of Oldest: later libraries take what is missing for undefined.
type config struct {
	size                                    uint64
	magic, version                          uint32
	blocking, clusterSize, minCTAs, maxCTAs int32
	network                                 uintptr
	splitShare                              int32
	_                                       int32
}

const (
	magic     = 0xcafebeef
	undefined = -1 << 31 // NCCL_CONFIG_UNDEF_INT
)

// Library is the loaded library. It stays loaded until the process ends. Its methods may be called
// by several goroutines at a time.
type Library struct {
	path      string
	version   int
	addresses [exports]uintptr

	mu sync.Mutex
	// used says that the library has looked at the network's interfaces, which it does once, local
	// that it has loopback alone.
	used, local bool
}

var _ driver.NCCL = (*Library)(nil)

// Open loads the library at a path or by a name; without one it searches where drivers are, too
// (libcuda.Find). An error says what was tried, or what is wrong with what was found.
func Open(path string) (*Library, error) {
	handle, place, err := libcuda.Find(path, soname)
	if err != nil {
		return nil, fmt.Errorf("no %s was found (%s names one): %w", soname, Variable, err)
	}
	l := &Library{path: place}
	missing := libcuda.LookUp(handle, names[:], l.addresses[:])
	if l.addresses[getVersion] != 0 {
		var version int32
		code := l.call(getVersion, uintptr(unsafe.Pointer(&version)))
		if err := l.failure(getVersion, code); err != nil {
			return nil, err
		}
		l.version = int(version)
		if l.version < Oldest {
			return nil, fmt.Errorf("%s is NCCL %s, and %s is the oldest that is used", l.path,
				driver.NCCLVersion(l.version), driver.NCCLVersion(Oldest))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s lacks %s", l.path, strings.Join(missing, ", "))
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

// Version implements driver.NCCL.
func (l *Library) Version() int { return l.version }

// ID implements driver.NCCL.
func (l *Library) ID(local bool) (id driver.CommID, err error) {
	if err := l.choose(local); err != nil {
		return id, err
	}
	code := l.call(getUniqueID, uintptr(unsafe.Pointer(&id)))
	return id, errors.Join(l.failure(getUniqueID, code), repair())
}

// interfaces is NCCL's variable for where it listens, loopback what it has for ranks of one machine
// that a user did not choose otherwise.
const interfaces, loopback = "NCCL_SOCKET_IFNAME", "lo"

// variables are NCCL's that a user did not choose otherwise: buffers of graphs are not registered,
// for which all ranks would have to record at once; and all memory is taken in the beginning.
var variables = map[string]string{"NCCL_GRAPH_REGISTER": "0", "NCCL_RUNTIME_CONNECT": "0"}

// choose has the library listen where no other machine reaches it, for ranks of this one. What it
// reads is the environment of C, which os.Setenv does not change.
func (l *Library) choose(local bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, given := os.LookupEnv(interfaces)
	if l.local && !local {
		return errors.New("this process has used NCCL among ranks of this machine, by its loopback")
	}
	if l.used {
		return nil
	}
	if local && !given {
		if err := set(interfaces, loopback); err != nil {
			return err
		}
		l.local = true
	}
	for name, value := range variables {
		if _, given := os.LookupEnv(name); given {
			continue
		}
		if err := set(name, value); err != nil {
			return err
		}
	}
	l.used = true
	return nil
}

// set sets a variable of the environment of C.
func set(name, value string) error {
	setenv, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv")
	if err != nil {
		return fmt.Errorf("setenv of the C library: %w", err)
	}
	n, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	v, err := unix.BytePtrFromString(value)
	if err != nil {
		return err
	}
	code := call(setenv, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(v)), 1)
	if code != 0 {
		return fmt.Errorf("setenv of %s: %d", name, code)
	}
	return nil
}

// repair mends handlers of signals that the library may have installed.
func repair() error {
	_, err := libcuda.RepairSignals()
	return err
}

// Join implements driver.NCCL.
func (l *Library) Join(ctx context.Context, c driver.Context, id driver.CommID, rank, size int,
	local bool) (driver.Communicator, error) {
	if err := l.choose(local); err != nil {
		return nil, err
	}
	// NCCL writes the communicator's address from a thread of its own, too: it may not be Go's
	// memory, and stays, a page for each group.
	page, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(uintptr(0))), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("a page for NCCL: %w", err)
	}
	comm := (*uintptr)(unsafe.Pointer(&page[0]))
	o := config{size: uint64(unsafe.Sizeof(config{})), magic: magic, version: Oldest, blocking: 0,
		clusterSize: undefined, minCTAs: undefined, maxCTAs: driver.NCCLChannels,
		splitShare: undefined}
	code := l.initialise(comm, size, &id, rank, &o)
	x := &communicator{l: l, device: c, size: size, handle: *comm}
	err = x.settled(commInitRankConfig, code, ctx.Done())
	if ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", names[commInitRankConfig], ctx.Err())
	}
	if err := errors.Join(err, repair()); err != nil {
		x.Abort()
		return nil, err
	}
	return x, nil
}

// initialise passes an ID by value. C does so with a struct of more than 16 bytes on the stack,
// behind what does not fit in registers, of which there are six (System V ABI for AMD64, 3.2.3), or
// by the address of a copy (AAPCS64, 6.8.2).
func (l *Library) initialise(comm *uintptr, size int, id *driver.CommID, rank int,
	o *config) int32 {
	if runtime.GOARCH == "arm64" {
		return l.call(commInitRankConfig, uintptr(unsafe.Pointer(comm)), uintptr(size),
			uintptr(unsafe.Pointer(id)), uintptr(rank), uintptr(unsafe.Pointer(o)))
	}
	w := *(*[16]uintptr)(unsafe.Pointer(id))
	return l.call(commInitRankConfig, uintptr(unsafe.Pointer(comm)), uintptr(size), uintptr(rank),
		uintptr(unsafe.Pointer(o)), 0, 0,
		w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7],
		w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15])
}

// communicator is a rank's, until it is aborted: then its handle is 0.
type communicator struct {
	l      *Library
	device driver.Context
	size   int

	mu     sync.Mutex // of the handle, and of calls with it
	handle uintptr
	// aborting is of one Abort at a time: the others wait for it.
	aborting sync.Mutex
}

// pollEvery is how often a communicator that is busy is asked again.
const pollEvery = 100 * time.Microsecond

// settled waits until a call that returned code is done, until the communicator is aborted, or done
// is closed.
func (x *communicator) settled(e export, code int32, done <-chan struct{}) error {
	for code == inProgress {
		select {
		case <-done:
			return nil
		case <-time.After(pollEvery):
		}
		code = x.state()
	}
	return x.failure(e, code)
}

// state is the communicator's code, 0 once it is aborted.
func (x *communicator) state() int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.handle == 0 {
		return 0
	}
	var state int32
	code := x.l.call(commGetAsyncError, x.handle, uintptr(unsafe.Pointer(&state)))
	if code != 0 {
		return code
	}
	return state
}

// AllGather implements driver.Communicator. What follows it in the stream does so when it returns:
// at its first time NCCL makes connections in a thread of its own, and enqueues then.
func (x *communicator) AllGather(dst, src driver.Ptr, floats int, s driver.Stream) error {
	x.mu.Lock()
	if x.handle == 0 {
		x.mu.Unlock()
		return nil
	}
	code := x.l.call(allGather, uintptr(src), uintptr(dst), uintptr(floats), float32s, x.handle,
		uintptr(s))
	x.mu.Unlock()
	return x.settled(allGather, code, nil)
}

// AllToAll implements driver.Communicator: a group of calls, which NCCL makes one of.
func (x *communicator) AllToAll(dst, src driver.Ptr, floats int, s driver.Stream) error {
	x.mu.Lock()
	if x.handle == 0 {
		x.mu.Unlock()
		return nil
	}
	e, code := groupStart, x.l.call(groupStart)
	if code == 0 {
		for r := range x.size {
			at := uintptr(4 * r * floats)
			for k, p := range [...]uintptr{uintptr(src) + at, uintptr(dst) + at} {
				if one := [...]export{send, receive}[k]; code == 0 || code == inProgress {
					e, code = one, x.l.call(one, p, uintptr(floats), float32s, uintptr(r),
						x.handle, uintptr(s))
				}
			}
		}
		// A group ends also where a call of it has failed, which is the first error.
		if ended := x.l.call(groupEnd); code == 0 || code == inProgress {
			e, code = groupEnd, ended
		}
	}
	x.mu.Unlock()
	return x.settled(e, code, nil)
}

// Failed implements driver.Communicator.
func (x *communicator) Failed() error {
	if code := x.state(); code != inProgress {
		return x.failure(commGetAsyncError, code)
	}
	return nil
}

// Abort implements driver.Communicator. NCCL wants the device in the calling thread, and waits for
// the end of graphs, for which others may need to see that the communicator is over.
func (x *communicator) Abort() {
	x.aborting.Lock()
	defer x.aborting.Unlock()
	x.mu.Lock()
	handle := x.handle
	x.handle = 0
	x.mu.Unlock()
	if handle == 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Neither is acted on: a device that is lost says so itself, and nothing is left to abort.
	_ = x.device.Enter()
	x.l.call(commAbort, handle)
}

// failure is the error of a code, with what the library knows of it.
func (x *communicator) failure(e export, code int32) error {
	err := x.l.failure(e, code)
	if err == nil {
		return nil
	}
	if known := x.l.text(lastError, 0); known != "" { // 0: of this process
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(known))
	}
	return err
}

// call calls an export and returns its ncclResult_t. An argument that is the address of Go memory
// is written uintptr(unsafe.Pointer(&x)) in the call itself: the compiler then leaves x where it
// is, and alive, until the call returns.
//
//go:uintptrescapes
func (l *Library) call(e export, args ...uintptr) int32 { return call(l.addresses[e], args...) }

//go:uintptrescapes
func call(address uintptr, args ...uintptr) int32 {
	code, _, _ := purego.SyscallN(address, args...)
	return int32(code)
}

// failure is the error of a code, with the library's words for it.
func (l *Library) failure(e export, code int32) error {
	if code == 0 {
		return nil
	}
	text := cmp.Or(l.text(errorText, uintptr(code)), "unknown")
	return fmt.Errorf("%s of %s: %s (%d)", names[e], l.path, text, code)
}

// text is what an export returns of an argument.
func (l *Library) text(e export, arg uintptr) string { return libcuda.Text(l.addresses[e], arg) }
