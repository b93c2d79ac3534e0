package config

import (
	"encoding/json"
	"strings"

	"github.com/spf13/pflag"
)

// LoRA says which adapters may be loaded beside the model.
type LoRA struct {
	Enable bool
	// MaxLoras is how many adapters requests may run with at once, MaxCPULoras how many may be
	// loaded; 0 is any number. MaxRank is their largest rank.
	MaxLoras, MaxCPULoras, MaxRank int
	// Modules are those loaded at the start, as they were written (see Named).
	Modules []string
	// Resolver says where adapters are looked for that requests name: a folder of their folders,
	// HubResolver, or that with :ORGANISATION; "" is nowhere.
	Resolver string
}

// Most is how many adapters are planned for, 0 without any: as many as may be loaded or run at
// once, or are loaded at the start.
func (l *LoRA) Most() int {
	if !l.Enable {
		return 0
	}
	return max(1, l.MaxLoras, l.MaxCPULoras, len(l.Modules))
}

// HubResolver is the value of --lora-resolver for repos of the Hub.
const HubResolver = "hub"

// NamedAdapter is an adapter to be loaded at the start.
type NamedAdapter struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Base is the name of the model that it is for, which may be left out.
	Base string `json:"base_model_name"`
}

// Named are the adapters to be loaded at the start.
func (l *LoRA) Named() (list []NamedAdapter, err error) {
	for _, text := range l.Modules {
		var a NamedAdapter
		if strings.HasPrefix(text, "{") {
			d := json.NewDecoder(strings.NewReader(text))
			d.DisallowUnknownFields()
			if err := d.Decode(&a); err != nil || d.More() {
				return nil, usage("--lora-modules %q is not read: name=path, or an object of "+
					"name, path and base_model_name", text)
			}
		} else {
			a.Name, a.Path, _ = strings.Cut(text, "=")
		}
		if a.Name == "" || a.Path == "" {
			return nil, usage("--lora-modules %q is not name=path", text)
		}
		for _, o := range list {
			if o.Name == a.Name {
				return nil, usage("--lora-modules names %s twice", a.Name)
			}
		}
		list = append(list, a)
	}
	return list, nil
}

// flagsOf defines the flags of adapters.
func (l *LoRA) flagsOf(f *pflag.FlagSet) {
	f.BoolVar(&l.Enable, "enable-lora", false, "let requests name an adapter (LoRA) as their model")
	f.StringArrayVar(&l.Modules, "lora-modules", nil,
		"adapters to load at the start, each name=folder (PEFT's)")
	Words(f, "lora-modules")
	f.IntVar(&l.MaxLoras, "max-loras", 0,
		"most adapters that requests run with at once; 0 is any number")
	f.IntVar(&l.MaxRank, "max-lora-rank", l.MaxRank, "largest rank of an adapter")
	f.IntVar(&l.MaxCPULoras, "max-cpu-loras", 0,
		"most adapters that are loaded; 0 is any number")
	f.StringVar(&l.Resolver, "lora-resolver", "",
		"where an adapter is looked for that a request names: a folder of adapters by name, here "+
			"or in a bucket, or hub, hub:ORGANISATION for repos (default: nowhere)")
	markGroup(f, "LoRAConfig")
}

// validateLoRA refuses what contradicts itself, or is not done with adapters.
func (c *Config) validateLoRA() error {
	l := &c.LoRA
	named, err := l.Named()
	if err != nil {
		return err
	}
	for _, n := range []struct {
		flag         string
		value, least int
	}{{"max-loras", l.MaxLoras, 0}, {"max-cpu-loras", l.MaxCPULoras, 0},
		{"max-lora-rank", l.MaxRank, 1}} {
		if n.value < n.least {
			return usage("--%s %d is less than %d", n.flag, n.value, n.least)
		}
	}
	if !l.Enable {
		switch {
		case len(named) > 0:
			return usage("--lora-modules without --enable-lora")
		case l.Resolver != "":
			return usage("--lora-resolver %s without --enable-lora", l.Resolver)
		}
		return nil
	}
	org, hub := l.HubOrganisation()
	switch {
	case c.Model.Runner == "pooling":
		return usage("--enable-lora with --runner pooling: adapters are for text")
	case c.Transfer.Role != "":
		return usage("--enable-lora with --kv-transfer-config: servers do not tell each other " +
			"which adapter blocks are of")
	case c.Recovery.OnModelChange == "adopt":
		return usage("--enable-lora with --on-model-change adopt: an adapter is for the weights " +
			"that it was trained beside")
	case l.MaxCPULoras > 0 && l.MaxLoras > l.MaxCPULoras:
		return usage("--max-loras %d is more than --max-cpu-loras %d", l.MaxLoras, l.MaxCPULoras)
	case l.MaxCPULoras > 0 && len(named) > l.MaxCPULoras:
		return usage("--lora-modules has %d adapters, --max-cpu-loras is %d", len(named),
			l.MaxCPULoras)
	case hub && l.Resolver != HubResolver && (org == "" || strings.Contains(org, "/")):
		return usage("--lora-resolver %q is not hub:ORGANISATION", l.Resolver)
	case l.Resolver != "" && !hub && !strings.Contains(l.Resolver, "://") &&
		!isFolder(l.Resolver):
		return usage("--lora-resolver %q is neither a folder, a bucket nor hub", l.Resolver)
	}
	return nil
}

// HubOrganisation is the one whose repos --lora-resolver looks among, "" for all; found is false
// where it is a folder or nothing.
func (l *LoRA) HubOrganisation() (org string, found bool) {
	if l.Resolver == HubResolver {
		return "", true
	}
	head, org, cut := strings.Cut(l.Resolver, ":")
	return org, cut && head == HubResolver
}
