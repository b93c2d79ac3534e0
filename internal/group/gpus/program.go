package gpus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/sys/attached"
	"github.com/eagleray/eagleray/internal/sys/executable"
)

// Verb is the first argument of eagleray for what the second program does with the others.
const Verb = "cuda"

// name is that of the second program.
const name = "eagleray-cuda"

// Become makes this process the second program with these arguments. It returns only after an
// error. The first thread must call it (executable.Become).
func Become(args []string) error {
	program, err := open()
	if err != nil {
		return err
	}
	defer program.Close()
	err = executable.Become(program, append([]string{"eagleray " + Verb}, args...))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the program for GPUs needs glibc's dynamic linker, which is not here: " +
			"start from an image with glibc (docker build --build-arg BASE=debian:stable-slim)")
	}
	return err
}

// open opens the second program: the one that is attached to this one, else the one beside it.
func open() (*os.File, error) {
	self, err := executable.Open()
	if err != nil {
		return nil, err
	}
	defer self.Close()
	program, err := attached.Unpack(self, name)
	if !errors.Is(err, attached.ErrNone) {
		return program, err
	}
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	program, err = os.Open(filepath.Join(filepath.Dir(path), name))
	if err != nil {
		return nil, fmt.Errorf("%s has no program for GPUs: neither is %s attached to it, as in "+
			"releases and by make build, nor is it beside it: %w", path, name, err)
	}
	return program, nil
}
