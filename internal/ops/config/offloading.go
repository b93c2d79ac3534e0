package config

import (
	"math"

	"github.com/spf13/pflag"
)

// Offloading says where KV blocks are stored beside the cache.
type Offloading struct {
	// GiB bounds the files of a folder; 0 is none.
	GiB float64
	// Dir is the folder, on each machine; "" is one in its memory.
	Dir string
	// Backend is native, the only one.
	Backend string
}

// Bytes bounds the files; 0 stores none.
func (o *Offloading) Bytes() int64 { return int64(o.GiB * (1 << 30)) }

func (o *Offloading) flagsOf(f *pflag.FlagSet) {
	f.Float64Var(&o.GiB, "kv-offloading-size", 0,
		"GiB of files in which each machine keeps KV blocks that the cache has no room for, for "+
			"all its engines, also after a restart (default: none)")
	f.StringVar(&o.Dir, "kv-offloading-dir", "",
		"folder of these files on each machine (default: /dev/shm/eagleray-kv-UID, in memory)")
	f.StringVar(&o.Backend, "kv-offloading-backend", o.Backend, "native")
	Paths(f, PathFolder, "kv-offloading-dir")
}

// mostGiB is more than any disk has.
const mostGiB = 1 << 30

// validateOffloading refuses what is not done with files.
func (c *Config) validateOffloading() error {
	o := &c.Cache.Offloading
	switch {
	case o.Backend == "lmcache":
		return usage("--kv-offloading-backend lmcache: there is no LMCache, native stores files")
	case o.Backend != "native":
		return usage("--kv-offloading-backend %q is not native", o.Backend)
	case !(o.GiB >= 0 && o.GiB <= mostGiB) || math.IsNaN(o.GiB):
		return usage("--kv-offloading-size %v is not a number of GiB", o.GiB)
	case o.GiB == 0 && o.Dir != "":
		return usage("--kv-offloading-dir %s without --kv-offloading-size", o.Dir)
	case o.GiB == 0:
		return nil
	case !c.Cache.PrefixCaching:
		return usage("--kv-offloading-size with --no-enable-prefix-caching: what is stored is " +
			"found as the prefix cache is")
	case c.Transfer.Role != "":
		return usage("--kv-offloading-size with --kv-transfer-config: blocks come from files or " +
			"from another server")
	}
	return nil
}
