package doctor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/ops/hub"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Question is what every node of a cluster is asked.
type Question struct {
	// Model, Revision and DownloadDir are the configuration's.
	Model       string `json:"model"`
	Revision    string `json:"revision"`
	DownloadDir string `json:"download_dir"`
}

// Facts are what a node says of itself.
type Facts struct {
	// Host is its name, Address where the others reach it.
	Host    string `json:"host"`
	Address string `json:"address"`
	// Version is the program's, Program its SHA-256; System the kernel's release, Arch the
	// processor's architecture.
	Version string `json:"version"`
	Program string `json:"program"`
	System  string `json:"system"`
	Arch    string `json:"arch"`
	// Vectors says that the processor has AVX2 and FMA.
	Vectors bool `json:"vectors"`
	Cores   int  `json:"cores"`
	// Memory is what this process may still take, in bytes; below 0 it is not known.
	Memory int64 `json:"memory"`
	// Disk is the room in Cache, where models of a Hub are kept; DiskError why it is not known.
	Disk      uint64 `json:"disk"`
	Cache     string `json:"cache"`
	DiskError string `json:"disk_error,omitempty"`
	// OpenFiles is the limit of descriptors.
	OpenFiles uint64 `json:"open_files"`
	// Interface has Address, and MTU bytes in a packet; "" when none of Interfaces has it.
	Interface  string   `json:"interface"`
	MTU        int      `json:"mtu"`
	Interfaces []string `json:"interfaces"`
	// Accelerators are the device files of GPUs.
	Accelerators []string `json:"accelerators"`
	Model        Model    `json:"model"`
}

// Model is what a node has of the model.
type Model struct {
	// Folder is where, "" for the built-in one and one that is not there.
	Folder string `json:"folder"`
	// Files are the SHA-256 of the files that are read, by name.
	Files map[string]string `json:"files"`
	Bytes int64             `json:"bytes"`
	// Later says that it comes from a Hub when workers start there, Error why it cannot be read.
	Later bool   `json:"later"`
	Error string `json:"error,omitempty"`
}

// facts answers a question about this machine, which others reach at an address.
func (m *Machine) facts(ctx context.Context, version, address string, q Question) Facts {
	f := Facts{Address: address, Version: version, Arch: runtime.GOARCH, Vectors: m.Vectors,
		Cores: m.Cores, Memory: -1, OpenFiles: m.OpenFiles, Model: m.Model(ctx, q)}
	f.Host, _ = os.Hostname() // a name for people
	if sum, err := join.BinaryHash(); err == nil {
		f.Program = hex.EncodeToString(sum[:6])
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.System = unix.ByteSliceToString(u.Release[:])
	}
	if free, known := m.Memory().Left(); known {
		f.Memory = free
	}
	cache, err := hub.CacheDir(q.DownloadDir)
	if err == nil {
		f.Cache = cache
		f.Disk, err = m.Free(cache)
	}
	if err != nil {
		f.DiskError = err.Error()
	}
	f.interfaces()
	// The pattern is well formed.
	f.Accelerators, _ = filepath.Glob("/dev/nvidia[0-9]*")
	return f
}

// interfaces finds the one that has the address.
func (f *Facts) interfaces() {
	all, err := net.Interfaces()
	if err != nil {
		return
	}
	told := net.ParseIP(f.Address)
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			f.Interfaces = append(f.Interfaces, i.Name+" "+n.IP.String())
			// All of 127.0.0.0/8 is this machine.
			if n.IP.Equal(told) || n.IP.IsLoopback() && told.IsLoopback() && n.Contains(told) {
				f.Interface, f.MTU = i.Name, i.MTU
			}
		}
	}
}

// model looks for the model as a rank does, but downloads nothing.
func model(ctx context.Context, q Question) Model {
	if q.Model == "" {
		return Model{}
	}
	dir, err := hub.Resolve(ctx, q.Model, hub.Options{Revision: q.Revision,
		DownloadDir: q.DownloadDir, Offline: true})
	switch {
	case errors.Is(err, hub.ErrOffline):
		return Model{Later: true}
	case err != nil:
		return Model{Error: err.Error()}
	}
	m := Model{Folder: dir, Files: map[string]string{}}
	if err := m.read(ctx); err != nil {
		m.Error = err.Error()
	}
	return m
}

// modelFiles are what a server reads of a model's folder beside its tokenizer.
var modelFiles = []string{"config.json", "generation_config.json", "chat_template.jinja",
	"*.safetensors", "*.safetensors.index.json"}

// readers is how many files are read at the same time.
const readers = 4

// read takes the hashes of the folder's files.
func (m *Model) read(ctx context.Context) error {
	dir, ggufs, err := checkpoint.Locate(m.Folder)
	if err != nil {
		return err
	}
	var names, paths []string
	for _, name := range ggufs {
		paths = append(paths, filepath.Join(dir, name))
	}
	if ggufs == nil {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	ofTokenizer := tokenizer.Names(names)
	for _, name := range names {
		if slices.Contains(ofTokenizer, name) || slices.ContainsFunc(modelFiles,
			func(pattern string) bool {
				ok, _ := filepath.Match(pattern, name)
				return ok
			}) {
			paths = append(paths, filepath.Join(m.Folder, name))
		}
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s has no file of a model", m.Folder)
	}
	var mu sync.Mutex
	var failure error
	var reading sync.WaitGroup
	next := make(chan string)
	for range readers {
		reading.Go(func() {
			for path := range next {
				sum, n, err := hashFile(ctx, path)
				mu.Lock()
				m.Files[filepath.Base(path)] = sum
				m.Bytes += n
				if failure == nil {
					failure = err
				}
				mu.Unlock()
			}
		})
	}
	for _, path := range paths {
		next <- path
	}
	close(next)
	reading.Wait()
	return failure
}

// hashFile is the beginning of a file's SHA-256, in hexadecimal, and its length.
func hashFile(ctx context.Context, path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, &untilDone{ctx, f})
	return hex.EncodeToString(h.Sum(nil)[:8]), n, err
}

// untilDone reads for as long as a context lasts.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
