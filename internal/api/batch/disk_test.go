package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const noMount = "cannot mount"

// TestFullDisk runs a batch on a disk that is too small for its answers, until there is room: no
// row is asked twice, and every one has its line. The disk is a tmpfs in a mount namespace.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv("EAGLERAY_TEST_DISK"); dir != "" {
		flags := uintptr(syscall.MS_REC | syscall.MS_PRIVATE)
		err := syscall.Mount("", "/", "", flags, "")
		if err == nil {
			err = syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")
		}
		if err != nil {
			t.Fatalf("%s: %v", noMount, err)
		}
		onFullDisk(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "EAGLERAY_TEST_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM) || bytes.Contains(out, []byte(noMount)):
		t.Skipf("this machine gives no namespace to mount in: %v: %s", err, out)
	case err != nil:
		t.Errorf("%v: %s", err, out)
	}
}

// waits tells when a batch waits for room.
type waits struct {
	slog.Handler
	told chan struct{}
}

func (h *waits) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "waits for room") {
		select {
		case h.told <- struct{}{}:
		default:
		}
	}
	return h.Handler.Handle(ctx, r)
}

func onFullDisk(t *testing.T, dir string) {
	s := newServer()
	h := &waits{slog.NewTextHandler(t.Output(), nil), make(chan struct{}, 1)}
	answer := json.RawMessage(`{"text":"` + strings.Repeat("x", 4000) + `"}`)
	b, _ := begun(t, dir, s, func(o *Options) {
		o.Log = slog.New(h)
		o.Do = func(ctx context.Context, owner string, r *Row) (Answer, error) {
			a, err := s.do(ctx, owner, r)
			a.Body = answer
			return a, err
		}
	})
	const rows = 100
	var in strings.Builder
	for i := range rows {
		in.WriteString(line(fmt.Sprint(i), endpoint, `{"model":"m"}`))
	}
	// Some of the answers fit beside this file.
	filler := filepath.Join(dir, "filler")
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	free := max(0, int64(stat.Bavail)*stat.Bsize-200<<10)
	if err := os.WriteFile(filler, make([]byte, free), 0o600); err != nil {
		t.Fatal(err)
	}
	o := create(t, b, in.String())
	<-h.told
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	o = get(t, b, o.ID, Completed)
	if got := content(t, b, o.OutputFileID); len(got) != rows || o.RequestCounts.Completed != rows {
		t.Errorf("%d lines of %d rows: %+v", len(got), rows, o)
	}
	for id, n := range s.asked {
		if n != 1 {
			t.Errorf("row %s was asked %d times", id, n)
		}
	}
}
