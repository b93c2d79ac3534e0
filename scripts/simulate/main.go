// Command simulate runs the tests of packages on a CPU that has AVX2 only as if it had AVX-512,
// VPDPBUSD, VDPBF16PS and AMX:
//
//	go run ./scripts/simulate [-all] 'PACKAGE [-test.FLAG …]' …
//
// Last it names the kernels of the programs that no test ran; with -all these are a failure.
//
// It traces the test programs (ptrace, Linux on x86-64). They are told that the CPU has the
// instructions; each one that it refuses is simulated here, with the registers and tiles that the
// thread would have. Only what the kernels of this repository use is known; anything else is
// reported and ends the program. Arithmetic is written down from Intel's manual (SDM vol. 2, and
// for tiles the pseudo-code of TDPBF16PS), not taken from the kernels: it uses no vectors.
package main

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/cpu"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("simulate: ")
	if cpu.X86.HasAMXTile {
		// It configures tiles without a trap, whether a program may use them or not.
		log.Print("this CPU has all the instructions: what tests of them say here is what they are")
		return
	}
	all := flag.Bool("all", false, "fail where no test runs a kernel")
	flag.Parse()
	runtime.LockOSThread() // the thread that starts a program is its tracer
	failed := false
	ran := map[string]bool{}
	for _, test := range flag.Args() {
		if err := run(strings.Fields(test), ran); err != nil {
			log.Printf("%s: %v", test, err)
			failed = true
		}
	}
	if list := idle(ran); len(list) > 0 {
		log.Printf("%d of %d kernels ran in no test: %s", len(list), len(ran),
			strings.Join(list, ", "))
		failed = failed || *all
	}
	if failed {
		os.Exit(1)
	}
}

// idle lists the kernels that did not run.
func idle(ran map[string]bool) (list []string) {
	for name, did := range ran {
		if !did {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// run builds a package's tests and runs them in its folder. It notes which kernels ran.
func run(words []string, ran map[string]bool) error {
	work, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	program := filepath.Join(work, "program")
	build := exec.Command("go", "test", "-c", "-o", program, "./"+words[0])
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c: %w: %s", err, text)
	}
	p, err := start(program, words)
	if err != nil {
		return err
	}
	defer syscall.Close(p.memory)
	err = p.trace()
	for _, k := range p.kernels {
		ran[k.name] = ran[k.name] || k.ran
	}
	return err
}

// program is a traced program.
type program struct {
	pid     int
	memory  int // its /proc/PID/mem
	threads map[int]*thread
	traps   map[uint64]*trap // by address
	counts  map[string]int   // of simulated instructions, by name
	kernels []kernel         // by address
	pages   [256]page        // copies of its memory, while a thread is stopped
}

// trap is where the program is stopped.
type trap struct {
	code  byte // what was there
	visit func(regs *syscall.PtraceRegs)
}

// lent are the features of x/sys/cpu that the program is told it has.
var lent = map[string]uintptr{
	"AVX512F":    unsafe.Offsetof(cpu.X86.HasAVX512F),
	"AVX512BW":   unsafe.Offsetof(cpu.X86.HasAVX512BW),
	"AVX512DQ":   unsafe.Offsetof(cpu.X86.HasAVX512DQ),
	"AVX512VL":   unsafe.Offsetof(cpu.X86.HasAVX512VL),
	"AVX512VNNI": unsafe.Offsetof(cpu.X86.HasAVX512VNNI),
	"AVX512VBMI": unsafe.Offsetof(cpu.X86.HasAVX512VBMI),
	"AVX512BF16": unsafe.Offsetof(cpu.X86.HasAVX512BF16),
	"AMXTile":    unsafe.Offsetof(cpu.X86.HasAMXTile),
	"AMXBF16":    unsafe.Offsetof(cpu.X86.HasAMXBF16),
	"AMXInt8":    unsafe.Offsetof(cpu.X86.HasAMXInt8),
}

const (
	permission = "github.com/eagleray/eagleray/internal/compute/cpu/isa.requestTiles"
	features   = "golang.org/x/sys/cpu.X86"
	assembled  = "github.com/eagleray/eagleray/internal/compute/cpu/"
)

// start starts a program, stopped, with its traps set.
func start(path string, words []string) (*program, error) {
	symbols, kernels, err := addresses(path, "main.main", permission, features)
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess(path, append([]string{path}, words[1:]...), &os.ProcAttr{
		Dir:   words[0],
		Files: []*os.File{nil, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return nil, err
	}
	p := &program{pid: proc.Pid, threads: map[int]*thread{}, traps: map[uint64]*trap{},
		counts: map[string]int{}, kernels: kernels}
	if _, err := syscall.Wait4(p.pid, nil, 0, nil); err != nil {
		return nil, err
	}
	const exitKill = 0x100000
	options := syscall.PTRACE_O_TRACECLONE | exitKill
	if err := syscall.PtraceSetOptions(p.pid, options); err != nil {
		return nil, err
	}
	p.memory, err = syscall.Open(fmt.Sprintf("/proc/%d/mem", p.pid), syscall.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	p.trap(symbols["main.main"], func(*syscall.PtraceRegs) {
		for _, offset := range lent {
			p.poke(symbols[features]+uint64(offset), []byte{1})
		}
	})
	if at := symbols[permission]; at != 0 {
		p.trap(at, func(regs *syscall.PtraceRegs) { // it returns 0
			regs.Rax, regs.Rip = 0, p.word(regs.Rsp)
			regs.Rsp += 8
		})
	}
	return p, nil
}

// addresses finds symbols, and the kernels; those that are not there are 0, but for the first.
func addresses(path string, names ...string) (map[string]uint64, []kernel, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	all, err := file.Symbols()
	if err != nil {
		return nil, nil, err
	}
	found := map[string]uint64{}
	var kernels []kernel
	for _, s := range all {
		if k, ok := kernelOf(file, s); ok {
			kernels = append(kernels, k)
		}
		for _, name := range names {
			if s.Name == name || s.Name == name+".abi0" {
				found[name] = s.Value
			}
		}
	}
	if found[names[0]] == 0 || found[features] == 0 {
		return nil, nil, fmt.Errorf("no %s or no %s in it", names[0], features)
	}
	slices.SortFunc(kernels, func(a, b kernel) int { return cmp.Compare(a.at, b.at) })
	return found, kernels, nil
}

// kernel is a function of instructions that are simulated.
type kernel struct {
	name string
	at   uint64
	ran  bool
}

// kernelOf tells whether a symbol is one: written in assembler, with so many instructions of
// AVX-512 or AMX among its bytes that they cannot be parts of others.
func kernelOf(file *elf.File, s elf.Symbol) (kernel, bool) {
	name, ok := strings.CutPrefix(s.Name, assembled)
	name, isAssembled := strings.CutSuffix(name, ".abi0")
	if !ok || !isAssembled || int(s.Section) >= len(file.Sections) {
		return kernel{}, false
	}
	section := file.Sections[s.Section]
	code := make([]byte, s.Size)
	if _, err := section.ReadAt(code, int64(s.Value-section.Addr)); err != nil {
		return kernel{}, false
	}
	const each = 128 // bytes for an instruction, at most
	count := 0
	for i := range max(len(code)-4, 0) {
		if known(code[i:]) {
			count++
		}
	}
	return kernel{name: name, at: s.Value}, count*each > len(code)
}

// runs notes that the kernel runs whose code is at an address.
func (p *program) runs(at uint64) {
	i, found := slices.BinarySearchFunc(p.kernels, at, func(k kernel, at uint64) int {
		return cmp.Compare(k.at, at)
	})
	if !found {
		i--
	}
	if i >= 0 {
		p.kernels[i].ran = true
	}
}

// trap has the program stop at an address, once.
func (p *program) trap(at uint64, visit func(*syscall.PtraceRegs)) {
	t := &trap{code: p.read(at, 1)[0], visit: visit}
	p.flushAll()
	p.traps[at] = t
	p.poke(at, []byte{0xcc})
}

// fault is a wrong access to the program's memory, or an instruction that would fault.
type fault struct{ error }

func (p *program) read(at uint64, n int) []byte {
	b := make([]byte, n)
	p.readInto(at, b)
	return b
}

// page is a copy of one of the program's memory, of which tag is the number, and what was written
// of it, between two places: a bit for each byte.
type page struct {
	tag      uint64
	from, to uint64
	written  [pageBytes / 8]byte
	data     [pageBytes]byte
}

const pageBytes = 4096

// at is the page that has an address: copied, if it is not yet there.
func (p *program) at(address uint64) *page {
	tag := address / pageBytes
	c := &p.pages[tag%uint64(len(p.pages))]
	if c.tag == tag {
		return c
	}
	p.flush(c)
	if n, err := syscall.Pread(p.memory, c.data[:], int64(tag*pageBytes)); n < pageBytes {
		panic(fault{fmt.Errorf("access at %#x: %w", address, err)})
	}
	c.tag = tag
	return c
}

// flush writes to the program's memory what was written of a page, and nothing else: other threads
// may write beside it. The copy is no longer valid.
func (p *program) flush(c *page) {
	for i := c.from; i < c.to; i++ {
		from := i
		for i < c.to && c.written[i/8]>>(i%8)&1 > 0 {
			i++
		}
		if i > from {
			p.poke(c.tag*pageBytes+from, c.data[from:i])
		}
	}
	clear(c.written[c.from/8 : (c.to+7)/8])
	c.tag, c.from, c.to = 0, 0, 0
}

// flushAll is flush of all pages.
func (p *program) flushAll() {
	for i := range p.pages {
		p.flush(&p.pages[i])
	}
}

// readInto reads as many bytes as b has, of copies that are valid as long as a thread is stopped.
func (p *program) readInto(at uint64, b []byte) {
	for len(b) > 0 {
		n := copy(b, p.at(at).data[at%pageBytes:])
		at, b = at+uint64(n), b[n:]
	}
}

// write writes to the copies.
func (p *program) write(at uint64, b []byte) {
	for len(b) > 0 {
		c := p.at(at)
		from := at % pageBytes
		n := uint64(copy(c.data[from:], b))
		if c.to == 0 {
			c.from = from
		}
		c.from, c.to = min(c.from, from), max(c.to, from+n)
		for i := from; i < from+n; i++ {
			c.written[i/8] |= 1 << (i % 8)
		}
		at, b = at+n, b[n:]
	}
}

// poke writes to the program's memory.
func (p *program) poke(at uint64, b []byte) {
	if _, err := syscall.Pwrite(p.memory, b, int64(at)); err != nil {
		panic(fault{fmt.Errorf("write of %d bytes at %#x: %w", len(b), at, err)})
	}
}

// trace runs the program to its end.
func (p *program) trace() error {
	if err := syscall.PtraceCont(p.pid, 0); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		signal := 0
		switch {
		case status.Exited() || status.Signaled():
			if tid != p.pid {
				delete(p.threads, tid)
				continue
			}
			fmt.Printf("simulate: %v\n", p.counts)
			if status.ExitStatus() != 0 {
				return fmt.Errorf("%v, status %d", status.Signal(), status.ExitStatus())
			}
			return nil
		case status.TrapCause() > 0: // an event
		case status.StopSignal() == syscall.SIGSTOP && p.threads[tid] == nil && tid != p.pid:
			p.threads[tid] = &thread{p: p, tid: tid} // a new thread
		case status.StopSignal() == syscall.SIGILL, status.StopSignal() == syscall.SIGTRAP:
			if p.threads[tid] == nil {
				p.threads[tid] = &thread{p: p, tid: tid}
			}
			if err := p.threads[tid].stopped(status.StopSignal()); err != nil {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
				return err
			}
		default:
			signal = int(status.StopSignal())
		}
		if err := syscall.PtraceCont(tid, signal); err != nil && err != syscall.ESRCH {
			return err
		}
	}
}

// stopped handles a trap, or simulates instructions as long as they are known ones.
func (t *thread) stopped(signal syscall.Signal) (err error) {
	defer func() {
		if f := recover(); f != nil {
			wrong, ok := f.(fault)
			if !ok {
				panic(f)
			}
			err = fmt.Errorf("at %#x: %w", t.regs.Rip, wrong.error)
		}
	}()
	if err := syscall.PtraceGetRegs(t.tid, &t.regs); err != nil {
		return err
	}
	if signal == syscall.SIGTRAP {
		at := t.regs.Rip - 1
		trap := t.p.traps[at]
		if trap == nil {
			return fmt.Errorf("trap at %#x", at)
		}
		t.p.poke(at, []byte{trap.code})
		t.regs.Rip = at
		trap.visit(&t.regs)
		t.p.flushAll()
		return syscall.PtraceSetRegs(t.tid, &t.regs)
	}
	if err := t.fetch(); err != nil {
		return err
	}
	t.p.runs(t.regs.Rip)
	for n := 0; ; n++ {
		code := t.code[:]
		t.p.readInto(t.regs.Rip, code)
		length := t.step(code)
		if length == 0 {
			if n == 0 {
				return fmt.Errorf("unknown instruction % x at %#x", code[:12], t.regs.Rip)
			}
			return t.put()
		}
		t.regs.Rip += uint64(length)
	}
}

// What XSAVE stores where: SDM vol. 1, chapter 13.
const (
	atMXCSR = 24
	atXMM   = 160 // the lower halves of YMM0 to YMM15
	atState = 512 // which states are not initial
	atYMM   = 576 // the upper halves
)

// fetch reads the thread's vector registers: the lower halves of ZMM0 to ZMM15 are the CPU's, which
// AVX2 instructions between simulated ones use, too.
func (t *thread) fetch() error {
	if err := t.state(0x4204); err != nil { // PTRACE_GETREGSET
		return err
	}
	s := t.saved[:]
	mxcsr := binary.LittleEndian.Uint32(s[atMXCSR:])
	t.flush = mxcsr&0x8000 != 0
	if (mxcsr&0x40 != 0) != t.flush {
		return fmt.Errorf("MXCSR flushes denormal operands or results, but not both")
	}
	for i := range 16 {
		for j := range 4 {
			t.z[i][j] = binary.LittleEndian.Uint32(s[atXMM+16*i+4*j:])
			t.z[i][4+j] = binary.LittleEndian.Uint32(s[atYMM+16*i+4*j:])
		}
	}
	return nil
}

// put writes the thread's registers, and memory.
func (t *thread) put() error {
	t.p.flushAll()
	s := t.saved[:]
	s[atState] |= 0b110
	for i := range 16 {
		for j := range 4 {
			binary.LittleEndian.PutUint32(s[atXMM+16*i+4*j:], t.z[i][j])
			binary.LittleEndian.PutUint32(s[atYMM+16*i+4*j:], t.z[i][4+j])
		}
	}
	if err := t.state(0x4205); err != nil { // PTRACE_SETREGSET
		return err
	}
	return syscall.PtraceSetRegs(t.tid, &t.regs)
}

// state gets or sets the area that XSAVE writes.
func (t *thread) state(request uintptr) error {
	const xstate = 0x202
	if request == 0x4204 {
		t.area.SetLen(len(t.saved))
	}
	t.area.Base = &t.saved[0]
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, request, uintptr(t.tid), xstate,
		uintptr(unsafe.Pointer(&t.area)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
