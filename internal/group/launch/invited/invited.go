// Package invited is the side of a launcher that runs in the process of a rank: it reads
// invitations from whatever started the process, and joins the driver of each.
package invited

import (
	"bufio"
	"fmt"
	"os"
	"slices"

	programs "github.com/eagleray/eagleray/internal/group/gpus"
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

// Run serves as a rank, and does not return, when the process was started as one. With gpus it does
// so too as the program for GPUs.
func Run(gpus worker.GPUs) {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == programs.Verb && gpus != nil {
		args = args[1:]
	} else {
		gpus = nil
	}
	if len(args) == 0 || args[0] != launch.Verb {
		return
	}
	if err := Main(args[1:], gpus); err != nil {
		fmt.Fprintln(os.Stderr, "eagleray worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ReadInvitation reads the invitation of a process that joins one group only.
func ReadInvitation() (join.Invitation, error) {
	pipe := os.NewFile(invitationFD, "invitation")
	defer pipe.Close()
	return join.ReadInvitation(bufio.NewReader(pipe))
}
