package queuebench

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The test binary is its own reader process.
const verb = "queue-reader"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == verb {
		if err := Child(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	for _, readers := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			o := Options{Readers: readers, Seed: 7, Duration: 500 * time.Millisecond, Command: []string{os.Args[0], verb}}
			if s := os.Getenv("EAGLERAY_QUEUEBENCH"); s != "" {
				o.Duration, _ = time.ParseDuration(s)
			}
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", text)
			if r.RoundTrip.P50 <= 0 || r.RoundTrip.P99 < r.RoundTrip.P50 || r.Floor.P50 <= 0 || r.LargeGBPerS <= 0 {
				t.Errorf("report %s", text)
			}
		})
	}
	_ = strings.Contains
}
