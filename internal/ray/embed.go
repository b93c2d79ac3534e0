package ray

import (
	"archive/zip"
	"bytes"
	"embed"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// sources is the bridge. The files are small: Python runs them as one zip archive.
//
//go:embed python/__main__.py python/bridge.py python/operations.py python/actor.py python/faults.py python/wire.py
var sources embed.FS

// archive packs the sources for "python FILE", which runs an archive's __main__.py.
func archive() ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	entries, err := sources.ReadDir("python")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := sources.ReadFile(path.Join("python", e.Name()))
		if err != nil {
			return nil, err
		}
		f, err := w.Create(e.Name())
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// archiveFile is the archive in memory: a file without a name, of which nothing can be left behind.
func archiveFile() (*os.File, error) {
	data, err := archive()
	if err != nil {
		return nil, fmt.Errorf("pack the Ray bridge: %w", err)
	}
	fd, err := unix.MemfdCreate("eagleray-bridge.zip", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd for the Ray bridge: %w", err)
	}
	f := os.NewFile(uintptr(fd), "eagleray-bridge.zip")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("write the Ray bridge: %w", err)
	}
	return f, nil
}
