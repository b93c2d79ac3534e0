package batch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// File is OpenAI's file object.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt *int64 `json:"expires_at,omitempty"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"`
}

// Purposes of files: clients upload for the first two.
const (
	PurposeBatch  = "batch"
	PurposeUser   = "user_data"
	PurposeOutput = "batch_output"
)

// Limits bound what one owner may keep. A field that is not positive means the default beside it.
type Limits struct {
	FileBytes  int64 // bytes of a file: 512 MB
	Files      int   // files: 10,000
	OwnerBytes int64 // bytes of all files: 16 GiB
	Uploads    int   // uploads at a time, of all owners: 16

	InputBytes int64 // bytes of a batch's input: 200 MB
	Rows       int   // rows of a batch: 50,000
	LineBytes  int   // bytes of a row: 1 MiB
	Active     int   // batches that are not over: 100
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	bytes := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	bytes(&l.FileBytes, 512_000_000)
	def(&l.Files, 10_000)
	bytes(&l.OwnerBytes, 16<<30)
	def(&l.Uploads, 16)
	bytes(&l.InputBytes, 200_000_000)
	def(&l.Rows, 50_000)
	def(&l.LineBytes, 1<<20)
	def(&l.Active, 100)
	return l
}

// Files keeps files of clients: what is said of them in the store, their contents in a folder
// beside it. An owner sees its own only. It is safe for concurrent use.
type Files struct {
	st  *store.Store
	dir string
	lim Limits
	// place is held while a content and its entry come or go: a sweep must not come between.
	place   sync.Mutex
	uploads chan struct{}
}

func newFiles(st *store.Store, dir string, lim Limits) *Files {
	return &Files{st: st, dir: dir, lim: lim, uploads: make(chan struct{}, lim.Uploads)}
}

func fileKey(owner, id string) string { return "file/" + owner + "/" + id }

// path is where the content of a file is. Ids are made here.
func (f *Files) path(id string) string { return filepath.Join(f.dir, "files", id) }

func (f *Files) tmp() string { return filepath.Join(f.dir, "uploads") }

// open makes the folders, and takes away what uploads have left that a crash ended.
func (f *Files) open() error {
	if err := f.st.Open(); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(f.tmp()), os.MkdirAll(f.tmp(), 0o700),
		os.MkdirAll(filepath.Join(f.dir, "files"), 0o700))
}

// Upload is a file on its way.
type Upload struct {
	files *Files
	owner string
	f     *os.File
	room  int64
	bytes int64
}

// Begin begins an upload. Abort ends it, also after Commit.
func (f *Files) Begin(owner string) (_ *Upload, err error) {
	select {
	case f.uploads <- struct{}{}:
	default:
		return nil, refuse(http.StatusTooManyRequests, "",
			"%d uploads are under way: try again later", f.lim.Uploads)
	}
	defer func() {
		if err != nil {
			<-f.uploads
		}
	}()
	u := &Upload{files: f, owner: owner}
	if u.room, err = f.room(owner); err != nil {
		return nil, err
	}
	if u.f, err = os.CreateTemp(f.tmp(), "*"); err != nil {
		return nil, told(err)
	}
	return u, nil
}

// room is how many bytes an owner's next file may have.
func (f *Files) room(owner string) (int64, error) {
	n, left := 0, f.lim.OwnerBytes
	err := f.each(owner, "", false, func(o File) bool {
		n++
		left -= o.Bytes
		return true
	})
	switch {
	case err != nil:
		return 0, told(err)
	case n >= f.lim.Files:
		return 0, refuse(http.StatusBadRequest, "file", "%d files are kept: delete some", n)
	case left <= 0:
		return 0, refuse(http.StatusBadRequest, "file", "files of %d bytes are kept: delete some",
			f.lim.OwnerBytes-left)
	}
	return min(left, f.lim.FileBytes), nil
}

// Write implements io.Writer.
func (u *Upload) Write(b []byte) (int, error) {
	if u.bytes+int64(len(b)) > u.room {
		return 0, refuse(http.StatusRequestEntityTooLarge, "file",
			"the file is larger than %d bytes", u.room)
	}
	n, err := u.f.Write(b)
	u.bytes += int64(n)
	return n, told(err)
}

// Commit keeps what was written for some time; 0 is 30 days for what has to do with batches, else
// for ever.
func (u *Upload) Commit(name, purpose string, lifetime time.Duration) (File, error) {
	if purpose == PurposeBatch && u.bytes > u.files.lim.InputBytes {
		return File{}, refuse(http.StatusBadRequest, "file",
			"the input of a batch may have %d bytes, this one has %d", u.files.lim.InputBytes,
			u.bytes)
	}
	if err := u.f.Sync(); err != nil {
		return File{}, told(err)
	}
	o := newFile("file-"+store.NewID(), name, purpose, u.bytes, lifetime)
	u.files.place.Lock()
	defer u.files.place.Unlock()
	if err := os.Rename(u.f.Name(), u.files.path(o.ID)); err != nil {
		return File{}, told(err)
	}
	err := u.files.st.Update(func(tx *store.Tx) error { return putFile(tx, u.owner, &o) })
	if err != nil {
		return File{}, told(errors.Join(err, os.Remove(u.files.path(o.ID))))
	}
	return o, nil
}

// move keeps what was written at a path outside of the files.
func (u *Upload) move(path string) error {
	if err := u.f.Sync(); err != nil {
		return err
	}
	return os.Rename(u.f.Name(), path)
}

// Abort takes away what is not kept.
func (u *Upload) Abort() {
	if u.f != nil {
		_ = u.f.Close()
		_ = os.Remove(u.f.Name()) // it is not there after Commit
		u.f = nil
		<-u.files.uploads
	}
}

func newFile(id, name, purpose string, bytes int64, lifetime time.Duration) File {
	now := time.Now()
	if lifetime == 0 && purpose != PurposeUser {
		lifetime = keptFor
	}
	o := File{ID: id, Object: "file", Bytes: bytes, CreatedAt: now.Unix(), Filename: name,
		Purpose: purpose, Status: "processed"}
	if lifetime > 0 {
		at := now.Add(lifetime).Unix()
		o.ExpiresAt = &at
	}
	return o
}

func putFile(tx *store.Tx, owner string, o *File) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var until time.Time
	if o.ExpiresAt != nil {
		until = time.Unix(*o.ExpiresAt, 0)
	}
	return tx.Put(fileKey(owner, o.ID), raw, until)
}

// noFile is the answer to an id of no file.
func noFile(param, id string) *Error {
	return refuse(http.StatusNotFound, param, "No such File object: %.100s", id)
}

// Get returns the file of an id.
func (f *Files) Get(owner, id string) (o File, err error) { return f.get(owner, id, "id") }

func (f *Files) get(owner, id, param string) (o File, err error) {
	if !validID(id, "file-") {
		return o, noFile(param, id)
	}
	raw, err := f.st.Get(fileKey(owner, id))
	if errors.Is(err, store.ErrNotFound) {
		return o, noFile(param, id)
	}
	if err != nil {
		return o, told(err)
	}
	return o, json.Unmarshal(raw, &o)
}

// validID says that an id is of the form that is given out.
func validID(id, prefix string) bool {
	digits, ours := strings.CutPrefix(id, prefix)
	return ours && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}

// Content opens the content of a file.
func (f *Files) Content(owner, id string) (io.ReadCloser, File, error) {
	o, err := f.Get(owner, id)
	if err != nil {
		return nil, o, err
	}
	content, err := os.Open(f.path(id))
	if errors.Is(err, os.ErrNotExist) { // deleted meanwhile
		return nil, o, noFile("id", id)
	}
	return content, o, err
}

// Delete removes a file. A batch that has begun with it goes on.
func (f *Files) Delete(owner, id string) error {
	if _, err := f.Get(owner, id); err != nil {
		return err
	}
	f.place.Lock()
	defer f.place.Unlock()
	if err := f.st.Delete(fileKey(owner, id)); err != nil {
		return told(err)
	}
	if err := os.Remove(f.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Page says which part of a list is asked for.
type Page struct {
	// After is the id before the first one, "" for none; Limit is the most that are returned.
	After string
	Limit int
	// Ascending is the oldest first.
	Ascending bool
}

// List returns files of an owner, of a purpose unless that is "", and whether there are more.
func (f *Files) List(owner, purpose string, p Page) (list []File, more bool, err error) {
	list = []File{}
	err = f.each(owner, p.After, !p.Ascending, func(o File) bool {
		if purpose != "" && o.Purpose != purpose {
			return true
		}
		if more = len(list) == p.Limit; !more {
			list = append(list, o)
		}
		return !more
	})
	return list, more, told(err)
}

// each calls do with an owner's files until it returns false.
func (f *Files) each(owner, after string, reverse bool, do func(File) bool) error {
	prefix := fileKey(owner, "")
	if after != "" {
		after = prefix + after
	}
	var bad error
	err := f.st.View(func(tx *store.Tx) error {
		tx.Each(prefix, after, reverse, func(key string, value []byte) bool {
			var o File
			if bad = json.Unmarshal(value, &o); bad != nil {
				bad = fmt.Errorf("%s: %w", key, bad)
				return false
			}
			return do(o)
		})
		return bad
	})
	return err
}

// sweep removes the contents of files that have expired, and those that a crash has left without an
// entry. kept are ids that will have one.
func (f *Files) sweep(kept map[string]bool) error {
	f.place.Lock()
	defer f.place.Unlock()
	there := map[string]bool{}
	err := f.st.View(func(tx *store.Tx) error {
		tx.Each("file/", "", false, func(key string, _ []byte) bool {
			there[key[strings.LastIndexByte(key, '/')+1:]] = true
			return true
		})
		return nil
	})
	if err != nil {
		return err
	}
	contents, err := os.ReadDir(filepath.Join(f.dir, "files"))
	for _, e := range contents {
		if !there[e.Name()] && !kept[e.Name()] {
			err = errors.Join(err, os.Remove(f.path(e.Name())))
		}
	}
	return err
}
