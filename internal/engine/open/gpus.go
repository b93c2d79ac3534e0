package open

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// gpuContext is what a GPU's driver, its kernels and the graphs of steps take beside what is
// counted.
const gpuContext = 1 << 30

// lookAtGPUs asks what this machine has, where ranks are to be on its GPUs. Of those that Ray
// gives, and of other nodes, ranks say what they have when they join.
func (r *resolver) lookAtGPUs() error {
	if !r.OnGPUs() || r.Null != nil || r.Backend() == "ray" {
		return nil
	}
	found, err := r.probe(r.ctx)
	if err != nil {
		return err
	}
	r.gpus = found.Usable()
	r.noLibrary = found.CUBLASLt == ""
	r.overPeers = !found.Apart && r.Config.Parallel.Nodes.Count <= 1 || found.NCCL == ""
	if len(r.gpus) == 0 {
		return fmt.Errorf("--device cuda: %s", found.Error)
	}
	return nil
}

// NeedOnGPU is what a rank of an engine takes of its GPU.
func (s *Spec) NeedOnGPU(rank int) memory.Rank { return s.onGPU(s.NeedOf(rank, 1)) }

// onGPU is the part of what a rank takes that is its GPU's: what is in files on a CPU's machine is
// in the GPU's memory, and threads are the host's.
func (s *Spec) onGPU(r memory.Rank) memory.Rank {
	r.Own, r.Process, r.Threads, r.PerThread, r.Loading = true, gpuContext, 0, 0, 0
	if !s.noLibrary {
		r.Process += driver.CUBLASLtBytes
	}
	if s.overPeers {
		return r
	}
	l := s.Config.Parallel.Layout()
	for _, ranks := range []int{l.TP, l.DP} { // which have a communicator each
		if ranks > 1 {
			r.Process += driver.NCCLBytes
		}
	}
	return r
}

// gpuHosts are the GPUs of ranks of this machine, one each, as hosts of the plan. The error says
// that there are too few.
func (s *Spec) gpuHosts(ranks []memory.Rank) (hosts []memory.Host, err error) {
	if len(ranks) > len(s.gpus) {
		return nil, usage("%d ranks on this machine have a GPU each: it has %d", len(ranks),
			len(s.gpus))
	}
	for i, r := range ranks {
		g := &s.gpus[i]
		free := g.MemoryTotal
		if g.MemoryFree != nil {
			free = *g.MemoryFree
		}
		name := fmt.Sprintf("GPU %d (%s)", g.Ordinal, g.Name)
		hosts = append(hosts, memory.Host{Name: name, Ranks: []memory.Rank{s.onGPU(r)},
			Bounds: memory.Bounds{{From: name, Limit: g.MemoryTotal, Left: free}}})
	}
	return hosts, nil
}
