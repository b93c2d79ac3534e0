package packed

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// checkedSuffix is of the file that has the stamp of a file whose bytes have been compared with
// their checksums.
const checkedSuffix = ".checked"

// stamp names a file as it is, until the machine is started again: what was compared once is in
// the page cache, or was read from the same place. It is "" where nothing tells that.
func stamp(f *os.File) string {
	var s unix.Stat_t
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err = cmp.Or(err, unix.Fstat(int(f.Fd()), &s)); err != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d %d %d", strings.TrimSpace(string(boot)), s.Dev, s.Ino, s.Size,
		s.Mtim.Nano())
}

// isChecked tells whether the bytes of an open file have been compared since it was written and the
// machine was started.
func isChecked(dir, key string, f *os.File) bool {
	text, err := os.ReadFile(pathOf(dir, key) + checkedSuffix)
	return err == nil && len(text) > 0 && string(text) == stamp(f)
}

// tick is longer than that of the system's clock for files: of two writes so far apart the second
// one changes the stamp.
const tick = 100 * time.Millisecond

// setChecked writes that they have. If it fails they are compared again.
func setChecked(dir, key string, f *os.File) {
	if info, err := f.Stat(); err == nil {
		// A clock that was set back, or a server's that is ahead, has files of later.
		time.Sleep(min(tick, tick-time.Since(info.ModTime())))
	}
	// A reader sees all of a text as short as this, or not the right one.
	_ = os.WriteFile(pathOf(dir, key)+checkedSuffix, []byte(stamp(f)), 0o600)
}
