package ray_test

import (
	"os"
	"testing"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestMain is also the main of engines that tests start as processes of their own (engine_test.go).
func TestMain(m *testing.M) {
	if role := os.Getenv(engineRole); role != "" {
		os.Exit(engineMain(role))
	}
	raytest.Main(m)
}
