package double

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
	"github.com/eagleray/eagleray/internal/sys/memfile"
)

// Memory that is exported lies in a file without a name, which other processes open by this one's
// descriptor and map as well: nothing is left of it when all of them have ended, in any way. What a
// machine stores there, the others load.

// shared is memory in such a file, mapped here.
type shared struct {
	data  []byte
	file  *os.File // of the context that exported it
	inode uint64
}

// Offsets in a handle, of 8 bytes each.
const (
	handleMagic = 8 * iota
	handlePID
	handleFD
	handleBytes
	handleInode
)

const magic = 0x656c62756f64 // "double"

// Reaches implements driver.Driver.
func (d *Driver) Reaches(ordinal, other int) (bool, error) {
	if err := d.fails("cuDeviceCanAccessPeer"); err != nil {
		return false, err
	}
	if ordinal != 0 || other != 0 {
		return false, &driver.Error{Call: "cuDeviceGet", Code: 101,
			Name: "CUDA_ERROR_INVALID_DEVICE"}
	}
	return !d.Apart, nil
}

// Export implements driver.Context.
func (c *Context) Export(p driver.Ptr) (h driver.Handle, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const call = "cuIpcGetMemHandle"
	if err := c.apart(call); err != nil {
		return h, err
	}
	bytes, ok := c.allocs[p]
	if !ok || bytes%driver.ExportGrain != 0 {
		return h, invalid(call, "%d bytes at %#x: what lies beside them would be exported, too",
			bytes, p)
	}
	s := c.exported[p]
	if s == nil {
		if err := c.runAll(); err != nil {
			return h, err
		}
		if s, err = c.share(p, bytes); err != nil {
			return h, invalid(call, "%v", err)
		}
	}
	for at, v := range map[int]uint64{handleMagic: magic, handlePID: uint64(os.Getpid()),
		handleFD: uint64(s.file.Fd()), handleBytes: bytes, handleInode: s.inode} {
		binary.LittleEndian.PutUint64(h[at:], v)
	}
	return h, nil
}

// share moves an allocation to a file.
func (c *Context) share(p driver.Ptr, bytes uint64) (s *shared, err error) {
	f, err := memfile.Create("eagleray-double", int64(bytes))
	if err != nil {
		return nil, err
	}
	s = &shared{file: f}
	if err := s.mapFile(s.file, int(bytes)); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	l := new(ptx.Ledger)
	if err := c.memory.Move(uint64(p), s.data, l); err != nil {
		return nil, errors.Join(err, s.close())
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.ledgers == nil {
		c.d.ledgers = map[uint64]*ptx.Ledger{}
	}
	c.d.ledgers[s.inode] = l
	c.exported[p] = s
	return s, nil
}

// mapFile maps a file.
func (s *shared) mapFile(f *os.File, bytes int) (err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return err
	}
	if stat.Size != int64(bytes) {
		return fmt.Errorf("memory of %d bytes has %d", bytes, stat.Size)
	}
	s.inode = stat.Ino
	s.data, err = unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

func (s *shared) close() error {
	err := unix.Munmap(s.data)
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// endExport closes the file of an allocation that was freed, if it has one.
func (c *Context) endExport(p driver.Ptr) error {
	s := c.exported[p]
	if s == nil {
		return nil
	}
	delete(c.exported, p)
	c.d.mu.Lock()
	delete(c.d.ledgers, s.inode)
	c.d.mu.Unlock()
	return s.close()
}

// Import implements driver.Context. Memory of the context's own is refused; a driver refuses that
// of all contexts of the process.
func (c *Context) Import(h driver.Handle) (driver.Ptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const call = "cuIpcOpenMemHandle_v2"
	if err := c.apart(call); err != nil {
		return 0, err
	}
	if c.d.Apart {
		return 0, &driver.Error{Call: call, Code: driver.PeerUnsupported,
			Name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(h[at:]) }
	if word(handleMagic) != magic {
		return 0, invalid(call, "it is no handle")
	}
	for _, s := range c.exported {
		if s.inode == word(handleInode) {
			return 0, invalidContext(call)
		}
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", word(handlePID), word(handleFD)), os.O_RDWR,
		0)
	if err != nil {
		return 0, invalid(call, "%v", err)
	}
	s := new(shared)
	err = s.mapFile(f, int(word(handleBytes)))
	f.Close() // the mapping stays
	if err == nil && s.inode != word(handleInode) {
		err = errors.Join(errors.New("the memory is gone"), s.close())
	}
	if err != nil {
		return 0, invalid(call, "%v", err)
	}
	c.d.mu.Lock()
	l := c.d.ledgers[s.inode] // nil for another process's
	c.d.mu.Unlock()
	p, err := c.memory.Attach(0, s.data, l)
	if err != nil {
		return 0, invalid(call, "%v", errors.Join(err, s.close()))
	}
	c.imported[driver.Ptr(p)] = s
	return driver.Ptr(p), nil
}

// CloseImport implements driver.Context.
func (c *Context) CloseImport(p driver.Ptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	const call = "cuIpcCloseMemHandle"
	if err := c.apart(call); err != nil {
		return err
	}
	s := c.imported[p]
	if s == nil {
		return invalid(call, "address %#x was not opened", p)
	}
	if err := c.runAll(); err != nil {
		return err
	}
	delete(c.imported, p)
	return errors.Join(c.memory.Free(uint64(p)), s.close())
}

// closeShared ends all mappings.
func (c *Context) closeShared() {
	for p := range c.exported {
		_ = c.endExport(p)
	}
	for _, s := range c.imported {
		_ = s.close()
	}
}
