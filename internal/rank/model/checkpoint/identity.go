package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/rank/model/gguf"
)

// File is the identity of a file of a model: files of one name, size and sum have the same content,
// wherever they lie, whatever user owns them and whenever they were written.
type File struct {
	Name string
	Size int64
	// Sum is of all that is in a small file. Of a large one with weights it is of the header and of
	// samples: some of every tensor, some evenly spread. Another training of the same model has
	// almost no number in common.
	Sum string
}

// IsWeights tells files with weights, by their names, from the others that are read of a model.
func IsWeights(name string) bool { return strings.HasSuffix(name, weightSuffix) || IsGGUF(name) }

// Describes tells files that say what weights are, or have them, from the tokenizer's and others.
func Describes(name string) bool {
	return IsWeights(name) || name == "config.json" || slices.Contains(quantFiles[:], name)
}

// Identity names the content of files.
func Identity(files []File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %d %s\n", f.Name, f.Size, f.Sum)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// ChangedError says that a file of a model is not the one that was loaded.
type ChangedError struct {
	// Path is the file.
	Path string
	// Want and Got name its content as it was loaded and as it is; Got is "" when there is none.
	Want, Got string
	// Written says that it was overwritten in place, which destroys its content, not replaced.
	Written bool
}

// Error says what can be done, too.
func (e *ChangedError) Error() string {
	how := fmt.Sprintf("is another file now (its identity is %s, that of what is loaded %s)",
		e.Got, e.Want)
	switch {
	case e.Written:
		how = fmt.Sprintf("was overwritten in place (its identity is %s, that of what was loaded "+
			"%s)", e.Got, e.Want)
	case e.Got == "":
		how = fmt.Sprintf("is gone (its identity was %s)", e.Want)
	}
	return fmt.Sprintf("model file %s %s: put the one that was loaded back, or restart the "+
		"server to serve what is there (--on-model-change adopt does so without)", e.Path, how)
}

const (
	// wholeSum is up to which size all of a file is in its sum.
	wholeSum = 16 << 20
	// A larger one is sampled in so many places, so many bytes each, and each of its tensors, but
	// for the ones beyond so many, in the middle.
	spread       = 64
	spreadSize   = 4096
	tensorSize   = 1024
	mostSampled  = 8192
	sampleAtOnce = 16
)

// sumFile is the File.Sum of an open file of a name.
func sumFile(f *os.File, name string, size int64) (string, error) {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, size) // a hash takes everything
	if size <= wholeSum || !IsWeights(name) {
		if n, err := io.Copy(h, io.NewSectionReader(f, 0, size)); err != nil || n < size {
			return "", fmt.Errorf("read %s: %w", f.Name(), cmp.Or(err, io.ErrUnexpectedEOF))
		}
		return hex.EncodeToString(h.Sum(nil)[:16]), nil
	}
	read := readHeader
	if IsGGUF(name) {
		read = readGGUFHeader
	}
	header, tensors, err := read(f, size)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Name(), err)
	}
	h.Write(header)
	samples, err := readSamples(f, samplesOf(tensors, size))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Name(), err)
	}
	h.Write(samples)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// tensorSpans are where the tensors of a file begin, and where in it each is.
type tensorSpans struct {
	body int64
	each []span64
}

// readHeader reads the header of a safetensors file, and says where its tensors are. Of a file that
// has none it is empty.
func readHeader(f *os.File, size int64) (header []byte, t tensorSpans, err error) {
	var length [lengthSize]byte
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return nil, t, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-lengthSize {
		return nil, t, nil // the loader reports it
	}
	header = make([]byte, n)
	if _, err := f.ReadAt(header, lengthSize); err != nil {
		return nil, t, err
	}
	t.body = lengthSize + int64(n)
	entries, err := parseHeader(header)
	if err != nil {
		return header, t, nil // the loader reports it
	}
	for _, e := range entries {
		t.each = append(t.each, span64{t.body + e.begin, e.end - e.begin})
	}
	return header, t, nil
}

// readGGUFHeader is readHeader for a file of GGUF, of which a malformed one has no header.
func readGGUFHeader(f *os.File, size int64) (header []byte, t tensorSpans, err error) {
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, t, err
	}
	defer unix.Munmap(data)
	parsed, err := gguf.Parse(data)
	if err != nil {
		return nil, t, nil // the loader reports it
	}
	t.body = int64(parsed.Header)
	for _, x := range parsed.Tensors {
		t.each = append(t.each, span64{int64(x.Offset), int64(len(x.Data))})
	}
	return bytes.Clone(data[:parsed.Header]), t, nil
}

// span64 is a part of a file.
type span64 struct{ at, size int64 }

// samplesOf are the parts of a file that are in its sum, in their order.
func samplesOf(t tensorSpans, size int64) []span64 {
	var list []span64
	for i := range int64(spread) {
		list = append(list, span64{t.body + (size-t.body-spreadSize)*i/(spread-1), spreadSize})
	}
	sort.Slice(t.each, func(i, j int) bool { return t.each[i].at < t.each[j].at })
	for i := 0; i < len(t.each); i += len(t.each)/mostSampled + 1 {
		e := t.each[i]
		n := min(tensorSize, e.size)
		if at := e.at + (e.size-n)/2; n > 0 && at >= t.body && at <= size-n {
			list = append(list, span64{at, n})
		}
	}
	return list
}

// readSamples reads parts of a file: several at a time, because disks and networks take long for
// each.
func readSamples(f io.ReaderAt, list []span64) ([]byte, error) {
	var total int64
	for _, s := range list {
		total += s.size
	}
	all := make([]byte, total)
	errs := make([]error, sampleAtOnce)
	var group sync.WaitGroup
	for k := range sampleAtOnce {
		group.Go(func() {
			at := int64(0)
			for i, s := range list {
				if i%sampleAtOnce == k && errs[k] == nil {
					_, errs[k] = f.ReadAt(all[at:at+s.size], s.at)
				}
				at += s.size
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
