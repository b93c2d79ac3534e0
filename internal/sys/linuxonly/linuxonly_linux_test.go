package linuxonly

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOtherSystems builds the program for one of them: the only error is this package's name. This
// file is for Linux too: with any other one there the compiler would go on to the rest.
func TestOtherSystems(t *testing.T) {
	for _, target := range []string{"../../..", "../../../cmd/eagleray"} {
		c := exec.Command("go", "build", "-o", os.DevNull, target)
		c.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=0")
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "/linuxonly: build constraints exclude") ||
			strings.Contains(string(out), "undefined") {
			t.Errorf("%s: %v: %s", target, err, out)
		}
	}
}
