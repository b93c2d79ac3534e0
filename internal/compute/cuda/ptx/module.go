// Package ptx executes PTX on a CPU: it parses the text that NVRTC and nvcc write (PTX ISA 7.0 to
// 8.8, sm_80 to sm_90a) and runs its kernels, 32 lanes of a warp at a time. Where the ISA says what
// an instruction gives, it gives that; where a program relies on what the ISA leaves open, the
// launch fails with a Fault.
//
// What differs from a GPU: functions that the ISA calls approximate are those of float64, rounded
// once; sums inside a matrix product have an order of their own (see mmaOp.exec); NaNs that
// arithmetic makes have the host's bits; atomic additions of f32 do not flush subnormal numbers;
// clocks count instructions; a block is a cluster of its own; and all asynchronous copies and
// products end as late as they may.
//
// What is not seen: races on global memory between lanes of one warp, lanes that wait in a loop for
// other lanes of their warp (the launch ends at Machine.Steps), fences of one lane that should be
// another's, and whatever depends on timing.
package ptx

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Module is a parsed text. It does not change but for kernels that are decoded, and any number of
// machines may use it at once.
type Module struct {
	mu        sync.Mutex // of decoding
	version   int
	target    string
	ops       *laneOps
	scope     *scope
	entries   []*function
	functions map[string]*function
	kernels   map[string]*Kernel
	// globals are the variables of .global and .const, which lie in one image of device memory.
	globals   []*variable
	imageSize uint64
	image     []byte // up to the last byte that an initialiser sets; the rest is zero
	relocs    []reloc
}

// reloc is a place of the image where the device's address of another place belongs.
type reloc struct{ at, target uint64 }

// Parse reads the text of a module and decodes its kernels. An error names the line, and the
// instruction or directive that is not known. A zero byte may end the text, as the CUDA driver
// wants it.
func Parse(src []byte) (*Module, error) {
	m, err := Read(src)
	if err != nil {
		return nil, err
	}
	for _, f := range m.entries {
		if err := m.kernels[f.name].Decode(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Read is Parse, but for the bodies of kernels, which are decoded when they are launched first.
func Read(src []byte) (*Module, error) {
	text := strings.TrimRight(string(src), "\x00")
	tokens, err := lex(text, 1, true)
	if err != nil {
		return nil, fmt.Errorf("ptx: %w", err)
	}
	m := &Module{ops: bestOps(), scope: newScope(nil), functions: map[string]*function{},
		kernels: map[string]*Kernel{}}
	p := &parser{tokens: tokens, lines: strings.Split(text, "\n"), first: 1, mod: m}
	if err := p.module(); err != nil {
		return nil, fmt.Errorf("ptx: %w", err)
	}
	if err := m.link(); err != nil {
		return nil, fmt.Errorf("ptx: %w", err)
	}
	for _, f := range m.entries {
		if m.kernels[f.name], err = newKernel(m, f); err != nil {
			return nil, fmt.Errorf("ptx: %s: %w", f.name, err)
		}
	}
	if len(m.entries) == 0 && len(m.functions) == 0 && len(m.globals) == 0 {
		return nil, errors.New("ptx: a module without kernels, functions or variables")
	}
	return m, nil
}

// Kernel finds a kernel by its name, nil if there is none.
func (m *Module) Kernel(name string) *Kernel { return m.kernels[name] }

// Kernels are the names of all kernels, in the order of the text.
func (m *Module) Kernels() []string {
	var names []string
	for _, f := range m.entries {
		names = append(names, f.name)
	}
	return names
}

// Target is the architecture that the text is for: "sm_80", "sm_90a".
func (m *Module) Target() string { return m.target }

// Version is the ISA's of the text: 83 is 8.3. It is 0 in a text that does not say.
func (m *Module) Version() int { return m.version }

// Global is where a variable of .global or .const lies in a memory, and its bytes; ok is false if
// the module has none of that name. It loads the module's variables into the memory.
func (m *Module) Global(mem *Memory, name string) (addr, size uint64, ok bool, err error) {
	v := m.scope.vars[name]
	if v == nil || v.space != globalSpace && v.space != constSpace {
		return 0, 0, false, nil
	}
	base, err := mem.load(m)
	return base + v.at, v.size, true, err
}

func (m *Module) entry(name string) *function {
	for _, f := range m.entries {
		if f.name == name {
			return f
		}
	}
	return nil
}

// declare has a module variable's place in the image set.
func (m *Module) declare(v *variable) {
	if v.space != globalSpace && v.space != constSpace {
		return
	}
	m.imageSize = alignUp(m.imageSize, uint64(v.align))
	v.at = m.imageSize
	m.imageSize += v.size
	m.globals = append(m.globals, v)
}

// link makes the image of the module's variables. Those without an initialiser are zero.
func (m *Module) link() error {
	if m.imageSize > maxVariable {
		return errors.New("the variables of the module are too large")
	}
	for _, v := range m.globals {
		for _, p := range v.init {
			at := v.at + p.at
			if at+uint64(len(p.data)) > m.imageSize {
				return fmt.Errorf("%s: the initialiser is longer than the variable", v.name)
			}
			if n := int(at) + len(p.data); n > len(m.image) {
				m.image = append(m.image, make([]byte, n-len(m.image))...)
			}
			copy(m.image[at:], p.data)
			if p.symbol == "" {
				continue
			}
			to := m.scope.vars[p.symbol]
			if to == nil || to.space != globalSpace && to.space != constSpace {
				return fmt.Errorf("%s: no variable %s to point to", v.name, p.symbol)
			}
			if len(p.data) != 8 {
				return fmt.Errorf("%s: an address has 8 bytes", v.name)
			}
			m.relocs = append(m.relocs, reloc{at, to.at + uint64(p.offset)})
		}
	}
	return nil
}

func alignUp(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// Kernel is one entry of a module.
type Kernel struct {
	// Name is its name in the text.
	Name string
	// ParamBytes is the size of the block of parameters that a launch wants.
	ParamBytes int
	// StaticShared are the bytes of shared memory that the kernel itself declares, without the KiB
	// that the system reserves, Local those of local memory of a thread, once it is decoded.
	StaticShared, Local uint32
	// MaxThreads are those of .maxntid or .reqntid in all, 0 if the text sets no limit.
	MaxThreads int
	// Line is where the kernel begins in the text, from 1.
	Line int

	mod     *Module
	fn      *function
	once    sync.Once
	failure error // of decoding
	code    []inst
	// lines and texts say for each instruction where it came from.
	lines []int
	texts []string
	// regs32, regs64 and preds are how many registers of each bank a warp has, constants among
	// them.
	regs32, regs64, preds  int
	constants              []constant
	specials               []special
	poisoned32, poisoned64 int // the first registers of a bank, which are no constants
	slots                  int // instructions with a cached allocation
	// dynamicAt is where dynamic shared memory begins, an address in shared memory.
	dynamicAt uint32
}

// constant is a register that has the same value in all lanes for ever.
type constant struct {
	reg   int32
	bank  bank
	value uint64
	// image means that value is an offset in the module's image.
	image bool
}

// special is a register that has a special register's value (PTX ISA 10).
type special struct {
	reg  int32
	name string
}

// newKernel is an entry that is not decoded.
func newKernel(m *Module, f *function) (*Kernel, error) {
	k := &Kernel{Name: f.name, Line: f.line, mod: m, fn: f}
	if f.maxntid[0] > 0 {
		k.MaxThreads = f.maxntid[0] * f.maxntid[1] * f.maxntid[2]
	}
	at := uint64(0)
	for _, v := range f.params {
		at = alignUp(at, uint64(v.align))
		v.at = at
		at += v.size
	}
	if at > 1<<15 {
		return nil, fmt.Errorf("line %d: %d bytes of parameters", f.line, at)
	}
	k.ParamBytes = int(at)
	return k, nil
}

// Decode reads and decodes the kernel's body, once. An error is as one of Parse.
func (k *Kernel) Decode() error {
	k.once.Do(func() {
		k.mod.mu.Lock()
		defer k.mod.mu.Unlock()
		if k.fn.text.kind == bodyToken {
			size := k.mod.imageSize
			err := k.mod.readBody(k.fn)
			if err == nil && k.mod.imageSize != size {
				err = fmt.Errorf("line %d: a variable of the module in a body", k.Line)
			}
			if err != nil {
				k.failure = fmt.Errorf("ptx: %w", err)
				return
			}
		}
		if err := k.decode(); err != nil {
			k.failure = fmt.Errorf("ptx: %s: %w", k.Name, err)
		}
	})
	return k.failure
}

// Instructions is how many instructions the kernel has, once it is decoded.
func (k *Kernel) Instructions() int { return len(k.code) }
