package driver

import (
	"context"
	"fmt"
)

// NCCL is NVIDIA's library of collectives, by which devices exchange that do not reach each other's
// memory: libnccl is that one, double what stands for it. Its errors name the call.
type NCCL interface {
	// Version is the library's: 22703 is 2.27.3. The ranks of a group have the same one.
	Version() int
	// ID is what ranks find each other by: one of them makes it, and all are told. local says that
	// all ranks are of this machine: then nothing listens where other machines reach it.
	ID(local bool) (CommID, error)
	// Join waits for all ranks of a new communicator, each of which calls it with its device, made
	// current in the calling thread, until ctx is done.
	Join(ctx context.Context, c Context, id CommID, rank, size int, local bool) (Communicator,
		error)
}

// NCCLChannels is how many channels a communicator has at most. NCCLBytes is what their buffers
// take of a device at most: 9.4 MB for each connection of a channel (NCCL's default sizes of its
// three protocols), of which a ring has one and a tree up to four each way, and 32 MB for what it
// sends between any two.
const (
	NCCLChannels = 8
	NCCLBytes    = NCCLChannels * (9*9_400_000 + 32<<20)
)

// NCCLVersion is a version as people write it: 2.27.3 for 22703, and 2.8.4 for 2804, which is how
// the library said it before 2.9.
func NCCLVersion(v int) string {
	major := 10000
	if v < major {
		major = 1000
	}
	return fmt.Sprintf("%d.%d.%d", v/major, v%major/100, v%100)
}

// CommID is ncclUniqueId.
type CommID [128]byte

// Communicator is the place of a rank among those that exchange. An error of its methods is the
// communicator's end: others may wait for this rank until theirs is aborted as well.
type Communicator interface {
	// AllGather enqueues: dst becomes the floats of src of all ranks, in their order. All ranks ask
	// for the same.
	AllGather(dst, src Ptr, floats int, s Stream) error
	// AllToAll enqueues: dst becomes the floats that src of each rank has for this one, in the
	// order of ranks, as they lie in src.
	AllToAll(dst, src Ptr, floats int, s Stream) error
	// Failed is what has gone wrong since with what was enqueued. Any goroutine may call it.
	Failed() error
	// Abort ends the communicator: what waits in a stream ends, its results undefined, and later
	// calls do nothing. It returns when no graph is left that has recorded a call. Any goroutine
	// may call it, also during another call, and again.
	Abort()
}
