package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRayJob(t *testing.T) {
	for _, c := range []struct {
		config string
		level  slog.Level
		want   string
	}{
		{"", slog.LevelWarn, ""},
		{`{"metadata":{"job_submission_id":"raysubmit_1","job_name":"x"},"runtime_env":{}}`,
			slog.LevelInfo, `msg="ray job" id=raysubmit_1 address=10.0.0.1:6379`},
		{`of a later Ray`, slog.LevelInfo, `msg="ray job" id=""`},
	} {
		t.Setenv(rayJobVariable, c.config)
		t.Setenv("RAY_ADDRESS", "10.0.0.1:6379")
		var got bytes.Buffer
		logRayJob(slog.New(slog.NewTextHandler(&got, nil)))
		if !strings.Contains(got.String(), c.want) || (got.Len() == 0) != (c.want == "") {
			t.Errorf("%q: %s", c.config, &got)
		}
		if logLevel() != c.level {
			t.Errorf("%q: level %v", c.config, logLevel())
		}
	}
}
