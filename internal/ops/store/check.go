package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// bbolt trusts its file: it follows the numbers in a page without looking, and finds out which
// pages are free on a goroutine of its own, whose panic cannot be caught. So the file is checked
// before bbolt has it: that every page that can be reached lies in the file, is of the kind that
// its parent says, once, and has its keys in order within the range that its parent gives it. The
// format is bbolt's internal/common: little-endian on the machines that this program is built for.

const (
	boltMagic, boltVersion = 0xED0CDAED, 2
	branchPage, leafPage   = 0x01, 0x02
	pageHead               = 16 // id 8, flags 2, count 2, overflow 4
	// magic, version, page size, flags, root 8, sequence 8, free list 8, high water 8, tx 8,
	// checksum 8
	metaSize   = 64
	noFreelist = 1<<64 - 1 // the list of free pages is not in the file
	// a leaf's element that is a bucket; its root 8, sequence 8
	bucketEntry, bucketHead    = 0x01, 16
	branchElement, leafElement = 16, 16 // pos, key size, page; flags, pos, key size, value size
	maxDepth                   = 64
)

// damage is what is wrong with a file.
type damage struct{ error }

func damaged(format string, args ...any) error { return &damage{fmt.Errorf(format, args...)} }

// check returns a *damage if the file is one that bbolt must not be given. A file that is empty, or
// not there, is sound.
func check(f *os.File) (err error) {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { _ = unix.Munmap(data) }()
	return guard(func() error {
		c := checker{data: data, seen: map[uint64]bool{}}
		root, err := c.meta()
		if err != nil {
			return err
		}
		return c.page(root, nil, nil, 0)
	})
}

// guard turns a panic in f, and a page of a file that is not there, into a *damage.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = damaged("%v", v)
		}
	}()
	return f()
}

type checker struct {
	data     []byte
	pageSize uint64
	pages    uint64 // below the high-water mark
	seen     map[uint64]bool
}

// meta finds the newer of the two sound heads of the file, and returns the page of the root bucket.
func (c *checker) meta() (root uint64, err error) {
	le := binary.LittleEndian
	err = errors.New("it has no head of bbolt's")
	newest, found := uint64(0), false
	take := func(at uint64) bool {
		if at+pageHead+metaSize > uint64(len(c.data)) {
			return false
		}
		m := c.data[at+pageHead:][:metaSize]
		h := fnv.New64a()
		h.Write(m[:metaSize-8])
		if le.Uint32(m) != boltMagic || le.Uint32(m[4:]) != boltVersion ||
			le.Uint64(m[56:]) != h.Sum64() {
			return false
		}
		if tx := le.Uint64(m[48:]); !found || tx > newest {
			newest, found = tx, true
			c.pageSize, root, c.pages = uint64(le.Uint32(m[8:])), le.Uint64(m[16:]),
				le.Uint64(m[40:])
			err = nil
			if le.Uint64(m[32:]) != noFreelist {
				err = errors.New("it has a list of free pages, which ours have not")
			}
		}
		return true
	}
	if take(0) {
		take(c.pageSize)
	} else {
		for at := uint64(1024); at <= 1<<24 && !take(at); at *= 2 {
		}
	}
	switch size := uint64(len(c.data)); {
	case err != nil:
		return 0, &damage{err}
	case c.pageSize < 1024 || c.pageSize > 1<<24 || c.pageSize&(c.pageSize-1) != 0:
		return 0, damaged("it has pages of %d bytes", c.pageSize)
	case c.pages > size/c.pageSize:
		return 0, damaged("it has %d pages, of which %d are there", c.pages, size/c.pageSize)
	}
	return root, nil
}

// page checks a page of a tree, and all below it, whose keys are from low to before high, where
// these are not nil.
func (c *checker) page(id uint64, low, high []byte, depth int) error {
	le := binary.LittleEndian
	if id < 2 || id >= c.pages || depth > maxDepth {
		return damaged("page %d is out of range", id)
	}
	p := c.data[id*c.pageSize:]
	more := uint64(le.Uint32(p[12:]))
	if le.Uint64(p) != id || more >= c.pages-id {
		return damaged("page %d says that it is %d, and %d more", id, le.Uint64(p), more)
	}
	for i := id; i <= id+more; i++ {
		if c.seen[i] {
			return damaged("page %d is reached twice", i)
		}
		c.seen[i] = true
	}
	return c.elements(p[:(more+1)*c.pageSize], id, low, high, depth)
}

// elements checks the elements of a page of number id, or of one that lies in a leaf of it.
func (c *checker) elements(p []byte, id uint64, low, high []byte, depth int) error {
	le := binary.LittleEndian
	flags, count := le.Uint16(p[8:]), int(le.Uint16(p[10:]))
	if flags != branchPage && flags != leafPage || flags == branchPage && count == 0 ||
		pageHead+16*count > len(p) {
		return damaged("page %d has %d elements of kind %#x", id, count, flags)
	}
	// key is that of an element, and what follows it in the page.
	key := func(i int) (k, rest []byte, err error) {
		at := pageHead + 16*i
		e := p[at:]
		pos, size := uint64(le.Uint32(e)), uint64(le.Uint32(e[4:]))
		if flags == leafPage {
			pos, size = uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:]))
		}
		if begin := uint64(at) + pos; pos < 16 || begin+size > uint64(len(p)) || size == 0 {
			return nil, nil, damaged("page %d: key %d is out of range", id, i)
		}
		return e[pos : pos+size], e[pos+size:], nil
	}
	before := low
	for i := range count {
		k, rest, err := key(i)
		if err != nil {
			return err
		}
		if order := bytes.Compare(before, k); before != nil && (order > 0 || order == 0 && i > 0) ||
			high != nil && bytes.Compare(k, high) >= 0 {
			return damaged("page %d: key %d is out of order", id, i)
		}
		before = k
		e := p[pageHead+16*i:]
		if flags == branchPage {
			next := high
			if i+1 < count {
				if next, _, err = key(i + 1); err != nil {
					return err
				}
			}
			err = c.page(le.Uint64(e[8:]), k, next, depth+1)
		} else {
			err = c.value(e, rest, id, depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// value checks the value of an element e of a leaf, which may be a bucket: another tree, or a page
// within.
func (c *checker) value(e, rest []byte, id uint64, depth int) error {
	le := binary.LittleEndian
	size := uint64(le.Uint32(e[12:]))
	if size > uint64(len(rest)) {
		return damaged("page %d: a value is out of range", id)
	}
	switch kind := le.Uint32(e); {
	case kind == 0:
		return nil
	case kind != bucketEntry || size < bucketHead:
		return damaged("page %d: an element of kind %#x", id, kind)
	}
	v := rest[:size]
	if root := le.Uint64(v); root != 0 {
		return c.page(root, nil, nil, depth+1)
	}
	if size < bucketHead+pageHead {
		return damaged("page %d: a bucket is out of range", id)
	}
	return c.elements(v[bucketHead:], id, nil, nil, depth+1)
}
