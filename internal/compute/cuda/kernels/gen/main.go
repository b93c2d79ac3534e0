// Command gen makes PTX of the kernels and cubins of that, the Go mirror of their parameters, and
// the table of what they take of each architecture, by NVRTC and ptxas of the wheels in
// requirements/cuda.txt: make kernels.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/ulikunitz/xz"
	"golang.org/x/sync/errgroup"
)

// architectures are those that cubins are made for.
var architectures = []string{"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}

// oldest is what the PTX needs at least: Ampere, whose instructions all later ones have. A file
// that is named for an architecture, as hopper.sm_90a.cu, is for that one alone.
const oldest = "compute_80"

func target(base string) string {
	if _, arch, only := strings.Cut(base, ".sm_"); only {
		return "compute_" + arch
	}
	return oldest
}

func main() {
	tools := flag.String("tools", "", "folder that the wheels are installed in")
	check := flag.Bool("check", false, "compare with the files that are there instead of writing")
	ptx := flag.String("ptx", "", "write the PTX of this file to standard output, and no more")
	flag.Parse()
	var err error
	if *ptx != "" {
		err = writePTX(*tools, *ptx)
	} else {
		err = run(*tools, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(tools string, check bool) error {
	sources, err := readAll("*.cu")
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("no kernels in the working directory (%v)", err)
	}
	headers, err := readAll("*.cuh")
	if err != nil {
		return err
	}
	var all []source
	for _, files := range []map[string][]byte{headers, sources} {
		for _, name := range sorted(files) {
			all = append(all, parse(name, string(files[name])))
		}
	}
	bySize := sorted(sources)
	slices.SortStableFunc(bySize, func(a, b string) int {
		return len(sources[b]) - len(sources[a])
	})
	used := usage{kernels: map[string]map[string]string{}, ptx: map[string][]byte{},
		cubins: map[string][]byte{}}
	ptxas := filepath.Join(tools, "nvidia", "cuda_nvcc", "bin", "ptxas")
	var compiled, assembled errgroup.Group
	compiled.SetLimit(runtime.NumCPU())
	assembled.SetLimit(runtime.NumCPU())
	for _, name := range bySize { // what takes longest goes first
		compiled.Go(func() error {
			base := strings.TrimSuffix(name, ".cu")
			ptx, err := compile(tools, name, sources[name], headers)
			if err != nil {
				return err
			}
			used.add(base, ptx)
			for _, arch := range architectures {
				if _, only, ok := strings.Cut(base, "."); ok && arch != only {
					continue
				}
				assembled.Go(func() error { return used.assemble(ptxas, arch, base, ptx) })
			}
			return nil
		})
	}
	if err := cmp.Or(compiled.Wait(), assembled.Wait()); err != nil {
		return err
	}
	made := map[string][]byte{}
	params, err := format.Source(mirror(all))
	if err != nil {
		return fmt.Errorf("params.go: %w", err)
	}
	made["params.go"], made["resources.txt"] = params, used.table()
	for name, files := range map[string]map[string][]byte{"ptx.tar.xz": used.ptx,
		"cubins.tar.xz": used.cubins} {
		if made[name], err = archive(files); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return write(made, check)
}

// archive is files as they are stored. Those of architectures are much alike, and refer to each
// other.
func archive(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := xz.NewWriter(&b)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	// Those of a kernel's file for several architectures lie side by side.
	names := sorted(files)
	slices.SortStableFunc(names, func(a, b string) int {
		return strings.Compare(filepath.Base(a), filepath.Base(b))
	})
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(files[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unpacked is what a file says, whichever version of a compressor wrote it.
func unpacked(name string, file []byte) []byte {
	if filepath.Ext(name) != ".xz" {
		return file
	}
	z, err := xz.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil
	}
	return text
}

// write stores the files, or says which of those that are there differ.
func write(made map[string][]byte, check bool) (err error) {
	for _, name := range sorted(made) {
		if check {
			old, _ := os.ReadFile(name)
			if !bytes.Equal(unpacked(name, old), unpacked(name, made[name])) {
				err = errors.Join(err, fmt.Errorf("%s is not what the sources make: run "+
					"make kernels", name))
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, made[name], 0o644); err != nil {
			return err
		}
	}
	return err
}

func readAll(pattern string) (map[string][]byte, error) {
	names, err := filepath.Glob(pattern)
	files := map[string][]byte{}
	for _, n := range names {
		if files[n], err = os.ReadFile(n); err != nil {
			return nil, err
		}
	}
	return files, err
}

func sorted[V any](m map[string]V) (names []string) {
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// unused are the variables that NVRTC declares for nothing, comments, and empty lines.
var unused = regexp.MustCompile(`(?m)^(\.global .*_INTERNAL_.*|[ \t]*//.*|\s*)\n`)

// tidy takes from PTX what no kernel uses, and what names the compiler's build.
func tidy(ptx []byte) []byte {
	ptx = bytes.TrimRight(ptx, "\x00")
	return append([]byte("// Code generated by gen. DO NOT EDIT.\n"),
		unused.ReplaceAll(ptx, nil)...)
}

// usage is what kernels take, by kernel and architecture, and the PTX and the cubins that say so.
type usage struct {
	mu          sync.Mutex
	kernels     map[string]map[string]string
	ptx, cubins map[string][]byte
}

var (
	compiling = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	spills    = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores`)
	uses      = regexp.MustCompile(`Used (\d+) registers(?:.*?(\d+) bytes smem)?`)
)

// compile is the PTX of a file. The compiler's library has one thread compile at a time: each file
// has a process.
func compile(tools, name string, text []byte, headers map[string][]byte) ([]byte, error) {
	inputs := fmt.Appendf(nil, "%s %q\n%s", tools, flags(name), text)
	for _, h := range sorted(headers) {
		inputs = fmt.Appendf(inputs, "\n%s\n%s", h, headers[h])
	}
	return kept(inputs, func() ([]byte, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(self, "-tools", tools, "-ptx", name)
		cmd.Stderr = os.Stderr
		ptx, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("PTX of %s: %w", name, err)
		}
		return ptx, nil
	})
}

// writePTX is what the process of a file does.
func writePTX(tools, name string) error {
	rtc, err := openNVRTC(filepath.Join(tools, "nvidia", "cuda_nvrtc", "lib"))
	if err != nil {
		return err
	}
	headers, err := readAll("*.cuh")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	ptx, err := rtc.compile(name, text, headers)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(tidy(ptx))
	return err
}

// kept is what was made of inputs, of which those that decide are given as one text: what was made
// once, in whatever tree, is found again.
func kept(inputs []byte, make func() ([]byte, error)) ([]byte, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(inputs)
	path := filepath.Join(cache, "eagleray", "cubins", hex.EncodeToString(sum[:]))
	if file, err := os.ReadFile(path); err == nil {
		return file, nil
	}
	file, err := make()
	if err != nil {
		return nil, err
	}
	return file, storeWhole(path, file)
}

// assemble is what ptxas makes of PTX for an architecture, behind what it says of it and a zero. A
// program of the same path is the same (pinned-venv.sh).
func assemble(ptxas, arch, base string, ptx []byte) ([]byte, error) {
	return kept(fmt.Appendf(nil, "%s %s %s %s", ptxas, arch, base, ptx), func() ([]byte, error) {
		dir, err := os.MkdirTemp("", "cubin")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, base)
		cmd := exec.Command(ptxas, "-v", "-arch="+arch, "-o", file, "/dev/stdin")
		cmd.Stdin = bytes.NewReader(ptx)
		said, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("ptxas for %s of %s: %w\n%s", arch, base, err, said)
		}
		cubin, err := os.ReadFile(file)
		return slices.Concat(said, []byte{0}, cubin), err
	})
}

// storeWhole writes a file that others only see whole.
func storeWhole(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// add is told the PTX of a file.
func (u *usage) add(base string, ptx []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ptx[base] = ptx
}

// assemble assembles PTX for an architecture. Local memory is an error: a kernel that spills is
// wrong.
func (u *usage) assemble(ptxas, arch, base string, ptx []byte) error {
	file, err := assemble(ptxas, arch, base, ptx)
	if err != nil {
		return err
	}
	out, cubin, _ := bytes.Cut(file, []byte{0})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cubins[arch+"/"+base] = cubin
	kernel := ""
	for line := range strings.Lines(string(out)) {
		if m := compiling.FindStringSubmatch(line); m != nil {
			kernel = m[1]
		}
		if m := spills.FindStringSubmatch(line); m != nil && (m[1] != "0" || m[2] != "0") {
			return fmt.Errorf("%s of %s spills on %s: %s", kernel, base, arch,
				strings.TrimSpace(line))
		}
		m := uses.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if u.kernels[kernel] == nil {
			u.kernels[kernel] = map[string]string{"shared": cmp.Or(m[2], "0")}
		}
		u.kernels[kernel][arch] = m[1]
	}
	return nil
}

// table is registers of a thread by architecture, and static shared memory in bytes.
func (u *usage) table() []byte {
	var b bytes.Buffer
	columns := append(slices.Clone(architectures), "shared")
	fmt.Fprintf(&b, "%-24s", "registers")
	for _, c := range columns {
		fmt.Fprintf(&b, " %8s", c)
	}
	b.WriteString("\n")
	for _, kernel := range sorted(u.kernels) {
		fmt.Fprintf(&b, "%-24s", kernel)
		for _, c := range columns {
			fmt.Fprintf(&b, " %8s", u.kernels[kernel][c])
		}
		b.WriteString("\n")
	}
	return b.Bytes()
}
