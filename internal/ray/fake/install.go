package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// cachePath is where a node keeps a file with the hash.
func (c *Cluster) cachePath(nodeID, sha256Hex string) string {
	if c.Dir == "" {
		return "/cache/eagleray-" + sha256Hex
	}
	return filepath.Join(c.Dir, nodeID, "eagleray-"+sha256Hex)
}

// find is the path of an executable file with the hash on a node, "" for none.
func (c *Cluster) find(nodeID, sha256Hex, hint string) string {
	if path := c.binary[nodeID+sha256Hex]; path != "" {
		return path
	}
	if c.Dir == "" {
		return ""
	}
	for _, path := range []string{hint, c.cachePath(nodeID, sha256Hex)} {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o100 != 0 &&
			fileHash(path) == sha256Hex {
			return path
		}
	}
	return ""
}

func (j *job) actorsInstall(_ context.Context, a args) (any, *frame.Fault) {
	c := j.cluster
	if c.Dir != "" && fileHash(a.File) != a.SHA256 {
		return nil, valueError("%s cannot be read or its SHA-256 is not %s", a.File, a.SHA256)
	}
	return j.on(a.Ranks, func(x *actor) (any, *frame.Fault) {
		node := x.facts.NodeID
		if where := c.find(node, a.SHA256, ""); where != "" {
			return ray.Installed{Rank: x.spec.Rank, Path: where, Cached: true}, nil
		}
		where := c.cachePath(node, a.SHA256)
		if c.Dir == "" {
			c.binary[node+a.SHA256] = where
		} else if err := install(a.File, where); err != nil {
			return nil, &frame.Fault{Class: "OSError", Message: err.Error()}
		}
		return ray.Installed{Rank: x.spec.Rank, Path: where}, nil
	}), nil
}

func install(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	partial := to + ".partial"
	if err := os.WriteFile(partial, data, 0o700); err != nil {
		return err
	}
	return os.Rename(partial, to)
}

// fileHash is the SHA-256 of a file in hexadecimal, "" for one that cannot be read.
func fileHash(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
