package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"runtime"

	"github.com/eagleray/eagleray/internal/sys/machine"
)

// rayJobVariable is what Ray gives the entry point of a job (ray.job_config, as JSON).
const rayJobVariable = "RAY_JOB_CONFIG_JSON_ENV_VAR"

// logLevel is the level of commands that end with their engine: what goes well is only of interest
// in the log of a job, which no terminal shows.
func logLevel() slog.Level {
	if os.Getenv(rayJobVariable) != "" {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// logRayJob says where a job of Ray runs; it is silent elsewhere. What the engine finds on the
// cluster, each phase of its start says.
func logRayJob(log *slog.Logger) {
	config := os.Getenv(rayJobVariable)
	if config == "" {
		return
	}
	var job struct {
		Metadata struct {
			ID string `json:"job_submission_id"`
		} `json:"metadata"`
	}
	// A job whose name is not known is still one.
	_ = json.Unmarshal([]byte(config), &job)
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	log.Info("ray job", "id", job.Metadata.ID, "address", os.Getenv("RAY_ADDRESS"), "host", host,
		"version", version(), "go", runtime.Version(), "cores", machine.Cores(), "memory",
		available(), "devices", os.Getenv("CUDA_VISIBLE_DEVICES"), "pid", os.Getpid())
}
