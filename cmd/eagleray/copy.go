package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// packagePlace is where an image has the Python package, seen from the program's folder.
const packagePlace = "../share/eagleray/python"

// newCopy is the verb of init containers: an image with this program has no shell, and the one with
// Ray has no program.
func newCopy() *cobra.Command {
	return &cobra.Command{
		Use:   "copy FOLDER",
		Short: "Copy this program, and the Python package of its image, to a folder",
		Long: `copy writes FOLDER/eagleray, and FOLDER/python where the image has the Python package. It is for init
containers: what they leave in a volume is used by containers of other images, such as Ray's.`,
		Hidden: true,
		Args:   cli.Arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			return copyTo(args[0], program)
		},
	}
}

func copyTo(folder, program string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(folder, "eagleray"), program, 0o755); err != nil {
		return err
	}
	from, to := filepath.Join(filepath.Dir(program), packagePlace), filepath.Join(folder, "python")
	err := fs.WalkDir(os.DirFS(from), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case path == "." && errors.Is(err, fs.ErrNotExist):
			return nil // an image without it
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o755)
		}
		return copyFile(filepath.Join(to, path), filepath.Join(from, path), 0o644)
	})
	if err != nil {
		return fmt.Errorf("the Python package: %w", err)
	}
	return nil
}

// copyFile puts a copy in the place of a file at once: a process that has the old one open, or runs
// it, keeps it.
func copyFile(to, from string, mode fs.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	part, err := os.CreateTemp(filepath.Dir(to), ".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // not there any more when all went well
	_, err = io.Copy(part, source)
	err = errors.Join(err, part.Chmod(mode), part.Close())
	if err != nil {
		return err
	}
	return os.Rename(part.Name(), to)
}
