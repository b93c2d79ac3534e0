package offload

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// Digest names the contents of a block together with everything before it (kvcache.Chain).
type Digest = [sha256.Size]byte

// Names are those of the files of a rank: a hash of all that a block's bytes follow from, and of
// the block's Digest.
type Names struct {
	dir string
	of  [sha256.Size]byte
}

// NamesOf returns the names that a program gives to the files of a rank in a folder (PathOf):
// another program may compute or lay out something otherwise.
func NamesOf(dir string, s *kvtransfer.Shape, rank int, program string) Names {
	text, _ := json.Marshal([]any{version, program, s.Model, s.DType, s.CacheDType, s.ISA,
		s.BlockSize, s.Cache,
		s.Parts(rank)}) // cannot fail with these types
	return Names{PathOf(dir), sha256.Sum256(text)}
}

// Has tells whether there is a file of a block.
func (n *Names) Has(block Digest) bool {
	_, err := os.Lstat(n.path(n.name(block)))
	return err == nil
}

func (n *Names) name(block Digest) Digest {
	return sha256.Sum256(append(n.of[:len(n.of):len(n.of)], block[:]...))
}

// suffix is of the files of blocks, partSuffix of those that are being written.
const (
	suffix     = ".kv"
	partSuffix = ".part"
)

func (n *Names) path(name Digest) string {
	return filepath.Join(n.dir, hex.EncodeToString(name[:])+suffix)
}

// A file is a header and the bytes of the block, of each part, layer and vector in order.
const (
	magic   = "eagle kv"
	version = 1
)

type header struct {
	Magic   [len(magic)]byte
	Version uint32
	// BodySum is the CRC-32C of what follows, Size its bytes.
	BodySum uint32
	Size    uint64
	Name    Digest
	// Sum is that of the header before it.
	Sum uint32
}

// headSize is the bytes of a header.
var headSize = binary.Size(header{})

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// errDamaged is wrapped by the errors of files that are not what their name says.
var errDamaged = errors.New("damaged")

// seal puts the header before the body, which follows its room.
func seal(file []byte, name Digest) error {
	body := file[headSize:]
	h := header{Version: version, BodySum: checksum(body), Size: uint64(len(body)), Name: name}
	copy(h.Magic[:], magic)
	if _, err := binary.Encode(file, binary.LittleEndian, &h); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(file[headSize-4:], checksum(file[:headSize-4]))
	return nil
}

// read fills file with that of a name, all of which must be right.
func (n *Names) read(file []byte, name Digest) error {
	path := n.path(name)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", path, errDamaged, fmt.Sprintf(format, args...))
	}
	if info.Size() != int64(len(file)) || !info.Mode().IsRegular() {
		return damaged("it has %d bytes of %d", info.Size(), len(file))
	}
	if _, err := io.ReadFull(f, file); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return damaged("it was cut")
		}
		return err
	}
	var h header
	if _, err := binary.Decode(file, binary.LittleEndian, &h); err != nil {
		return err
	}
	switch {
	case string(h.Magic[:]) != magic || h.Version != version ||
		h.Sum != checksum(file[:headSize-4]) || h.Size != uint64(len(file)-headSize):
		return damaged("no header of such a file")
	case h.Name != name:
		return damaged("it is that of %x", h.Name)
	case h.BodySum != checksum(file[headSize:]):
		return damaged("its checksum is another one")
	}
	return nil
}

// write writes a file that appears under its name when all of it was written. It is not synced: a
// machine that stops may leave one that read refuses.
func (n *Names) write(file []byte, name Digest, used time.Time) (err error) {
	var random [8]byte
	rand.Read(random[:])
	path := n.path(name)
	part := fmt.Sprintf("%s.%x%s", path, random, partSuffix)
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(file)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Chtimes(part, time.Time{}, used)
	}
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
	}
	return err
}

// touch makes a file one that was used. It returns false if it is not there.
func (n *Names) touch(name Digest, used time.Time) bool {
	return os.Chtimes(n.path(name), time.Time{}, used) == nil
}
