package config

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// EPLB says how experts are moved between ranks by their loads (vLLM's expert parallel load
// balancing).
type EPLB struct {
	// Enabled has them moved; without it copies stay where they are.
	Enabled bool
	// Redundant is how many experts of a layer have copies on several ranks.
	Redundant int
	// StepInterval is after how many steps their loads are looked at.
	StepInterval uint64
}

// eplbJSON are the accepted keys of --eplb-config. Of the loads those of the last minute or two
// count, whatever the window.
type eplbJSON struct {
	StepInterval *uint64 `json:"step_interval"`
	Redundant    *int    `json:"num_redundant_experts"`
	Window       any     `json:"window_size"`
	Log          any     `json:"log_balancedness"`
	LogInterval  any     `json:"log_balancedness_interval"`
	Async        any     `json:"use_async"`
	Policy       any     `json:"policy"`
}

// eplbValue is the flag --eplb-config.
type eplbValue struct {
	eplb *EPLB
	text string
}

// String implements pflag.Value.
func (v *eplbValue) String() string { return v.text }

// Type implements pflag.Value.
func (v *eplbValue) Type() string { return "json" }

// Set implements pflag.Value.
func (v *eplbValue) Set(text string) error {
	limits := jsonx.Limits{Bytes: 1 << 12, Depth: 2, Members: 32}
	if err := jsonx.Read([]byte(text), limits, (*jsonx.Reader).Skip); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	var keys eplbJSON
	if err := decodeStrict(text, &keys); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	if n := keys.StepInterval; n != nil {
		if *n < 1 || *n > math.MaxInt32 {
			return fmt.Errorf("step_interval is %d, must be 1 to %d", *n, math.MaxInt32)
		}
		v.eplb.StepInterval = *n
	}
	if n := keys.Redundant; n != nil {
		v.eplb.Redundant = *n
	}
	v.text = text
	return nil
}
