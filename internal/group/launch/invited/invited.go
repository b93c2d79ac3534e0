// Package invited is the side of a launcher that runs in the process of a rank: it reads
// invitations from whatever started the process, and joins the driver of each.
package invited

import (
	"bufio"
	"os"
	"slices"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/rank/worker"
)

// invitationFD is the descriptor from which a worker reads its invitation: a pipe, because it holds
// a secret that neither arguments nor environment may show. An actor has it come by standard input.
const invitationFD = 3

// Main serves as a rank until the driver is gone; args are what follows launch.Verb. gpus
// makes the devices of ranks on GPUs, and is nil in a program that has none.
func Main(args []string, gpus worker.GPUs) error {
	if slices.Contains(args, launch.ActorFlag) {
		return ofActor(gpus)
	}
	pipe := os.NewFile(invitationFD, "invitation")
	defer pipe.Close()
	in := bufio.NewReader(pipe)
	return worker.Serve(func() (join.Invitation, error) { return join.ReadInvitation(in) }, nil,
		gpus)
}

// ReadInvitation reads the invitation of a process that joins one group only.
func ReadInvitation() (join.Invitation, error) {
	pipe := os.NewFile(invitationFD, "invitation")
	defer pipe.Close()
	return join.ReadInvitation(bufio.NewReader(pipe))
}
