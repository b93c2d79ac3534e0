package config

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/internal/ops/compat"
)

// TestCompat holds the table of notes to the flags that there are, and what is said of flags that
// do nothing to what they accept.
func TestCompat(t *testing.T) {
	c := Default()
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetNormalizeFunc(Normalize)
	c.EngineFlags(f)
	c.ServerFlags(f)
	for name := range flagNotes {
		// These three are of the command.
		if f.Lookup(name) == nil && name != "model" && name != "check" && name != "config" {
			t.Errorf("--%s has a note and is no flag", name)
		}
	}
	got := map[string]compat.Entry{}
	for _, e := range Compat(f) {
		got[e.Name] = e
	}
	for name, want := range map[string]compat.Entry{
		"--port": {Status: compat.Same, Note: "0 is any free one"},
		"--tensor-parallel-size": {Status: compat.Differs,
			Note: "1, 2, 4 or 8, and the heads must divide; also -tp"},
		"--node-ip": {Status: compat.Ours,
			Note: "this machine's address for workers; also VLLM_HOST_IP"},
		"--disable-custom-all-reduce": {Status: compat.NoEffect, Note: "there is one all-reduce"},
		"--swap-space": {Status: compat.NoEffect,
			Note: "preempted requests are computed again"},
		"--enable-lora":             {Status: compat.Same},
		"--enable-moe-shared-loras": {Status: compat.Refused, Note: "experts are not adapted"},
		"--quantization": {Status: compat.Differs,
			Note: "int8_per_channel_weight_only, int8, int4, int4_g64, int4_g128 as weights are " +
				"loaded; the checkpoint's own method changes nothing; others are refused; also -q"},
		"--block-size":   {Status: compat.Differs, Note: "multiples of 16; 16 by default"},
		"--max-logprobs": {Status: compat.Same},
	} {
		want.Name = name
		if got[name] != want {
			t.Errorf("%+v, want %+v", got[name], want)
		}
	}
	if _, found := got["--no-disable-custom-all-reduce"]; found {
		t.Error("the negation of a switch is an entry of its own")
	}
}

// TestCompatOfKnownFlags: what passes by its value never ends a start, what is refused does.
func TestCompatOfKnownFlags(t *testing.T) {
	for _, table := range [][]Known{engineKnown, serverKnown, goneKnown, foreignKnown} {
		for _, k := range table {
			var warnings []string
			f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			DefineKnown(f, []Known{k}, &warnings)
			asked := "asked"
			if k.Switch {
				asked = "true"
			}
			status, _ := k.compat()
			if err := f.Set(k.Name, asked); (err != nil) != (status == compat.Refused) {
				t.Errorf("--%s %s is %s, and set: %v", k.Name, asked, status, err)
			}
		}
	}
}
