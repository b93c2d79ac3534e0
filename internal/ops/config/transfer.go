package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// Transfer says how KV blocks are exchanged with other engines. It is the value of
// --kv-transfer-config, a JSON object with vLLM's keys.
type Transfer struct {
	// Role is kv_producer, kv_consumer or kv_both; "" is no exchange.
	Role string
	// EngineID names the engine to others; "" is a random name.
	EngineID string
	// IP and Port are where the first rank listens, the others at the ports that follow; "" and 0
	// are each rank's own address and any port.
	IP   string
	Port int
	// HoldTimeout bounds how long blocks are kept for the engine that is to fetch them,
	// FetchTimeout how long fetching them may take until they are computed instead.
	HoldTimeout, FetchTimeout time.Duration
	// Remote says that blocks travel over TCP also between processes of one host.
	Remote bool

	text string
}

// Produces and Consumes tell what the role allows.
func (t *Transfer) Produces() bool { return t.Role == "kv_producer" || t.Role == "kv_both" }

// Consumes tells whether the engine may go on from the blocks of others.
func (t *Transfer) Consumes() bool { return t.Role == "kv_consumer" || t.Role == "kv_both" }

// connectors are the accepted values of kv_connector: our own, and vLLM's whose parameters of
// requests are the same.
var connectors = []string{"EagleRayConnector", "NixlConnector"}

// transferJSON are the accepted keys of --kv-transfer-config. Those of type any are accepted with
// the values that say what is done anyway.
type transferJSON struct {
	Connector   string           `json:"kv_connector"`
	Role        string           `json:"kv_role"`
	EngineID    string           `json:"engine_id"`
	IP          string           `json:"kv_ip"`
	Port        json.Number      `json:"kv_port"`
	Device      any              `json:"kv_buffer_device"`
	LoadFailure any              `json:"kv_load_failure_policy"`
	Permute     any              `json:"enable_permute_local_kv"`
	Extra       transferMoreJSON `json:"kv_connector_extra_config"`
}

// transferMoreJSON are the accepted keys of kv_connector_extra_config.
type transferMoreJSON struct {
	HoldSeconds  float64 `json:"hold_timeout_seconds"`
	FetchSeconds float64 `json:"fetch_timeout_seconds"`
	SharedMemory bool    `json:"shared_memory"`
}

// transferRefused are vLLM's keys that are refused, each with the reason.
var transferRefused = map[string]string{
	"kv_buffer_size":           "blocks go from cache to cache, without a buffer between",
	"kv_rank":                  "a request says from whom its blocks come",
	"kv_parallel_size":         "a request says from whom its blocks come",
	"kv_connector_module_path": "there is no Python",
}

// String implements pflag.Value.
func (t *Transfer) String() string { return t.text }

// Type implements pflag.Value.
func (t *Transfer) Type() string { return "json" }

// maxTransferSeconds bounds both timeouts: a day.
const maxTransferSeconds = 24 * 60 * 60

// Set implements pflag.Value.
func (t *Transfer) Set(text string) error {
	j := transferJSON{Device: "cpu", LoadFailure: "recompute", Permute: false}
	j.Extra = transferMoreJSON{t.HoldTimeout.Seconds(), t.FetchTimeout.Seconds(), true}
	limits := jsonx.Limits{Bytes: 1 << 16, Depth: 8, Members: 256}
	if err := jsonx.Read([]byte(text), limits, (*jsonx.Reader).Skip); err != nil {
		return err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &keys); err != nil {
		return fmt.Errorf("must be a JSON object: %w", err)
	}
	for key, why := range transferRefused {
		if raw, ok := keys[key]; ok && string(raw) != "null" {
			return fmt.Errorf("%s has no meaning here: %s", key, why)
		}
	}
	if err := decodeStrict(text, &j); err != nil {
		return err
	}
	port, err := j.Port.Int64()
	if j.Port == "" {
		port, err = 0, nil
	}
	switch {
	case !slices.Contains(connectors, j.Connector):
		return fmt.Errorf("kv_connector %q is not one of %s",
			j.Connector, strings.Join(connectors, ", "))
	case !slices.Contains([]string{"kv_producer", "kv_consumer", "kv_both"}, j.Role):
		return fmt.Errorf("kv_role %q is not one of kv_producer, kv_consumer, kv_both", j.Role)
	case err != nil || port < 0 || port > 65535:
		return fmt.Errorf("kv_port %s is not a port", j.Port)
	case j.Device != "cpu" && j.Device != nil:
		return fmt.Errorf("kv_buffer_device %v: blocks go through the host's memory, cpu", j.Device)
	case j.LoadFailure != "recompute" && j.LoadFailure != nil:
		return fmt.Errorf("kv_load_failure_policy %v: what does not come is computed, recompute",
			j.LoadFailure)
	case j.Permute != false && j.Permute != nil:
		return fmt.Errorf("enable_permute_local_kv %v: heads are moved as they are, false",
			j.Permute)
	}
	for name, s := range map[string]float64{"hold_timeout_seconds": j.Extra.HoldSeconds,
		"fetch_timeout_seconds": j.Extra.FetchSeconds} {
		if !(s > 0) || s > maxTransferSeconds {
			return fmt.Errorf("kv_connector_extra_config: %s %v is not within 0 and %d", name, s,
				maxTransferSeconds)
		}
	}
	*t = Transfer{Role: j.Role, EngineID: j.EngineID, IP: j.IP, Port: int(port), text: text,
		Remote:       !j.Extra.SharedMemory,
		HoldTimeout:  time.Duration(j.Extra.HoldSeconds * float64(time.Second)),
		FetchTimeout: time.Duration(j.Extra.FetchSeconds * float64(time.Second))}
	return nil
}
