package steer

import (
	"context"
	"net"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// load brings an update to the ranks of a group and has them load it.
func load(group *executor.Executor, u *weights.Update, claimed func()) error {
	if err := sendTo(group, u, claimed); err != nil {
		return err
	}
	return do(group, calls.WeightsLoad, u.ID)
}

// sendTo brings the bytes of an update to the ranks of a group. Ranks of the driver's host
// map its memory. To each other host the bytes are sent once: one rank there gets them, and the
// others, also those of other engines, map its memory. It calls claimed once it has claimed hosts,
// or others have.
func sendTo(group *executor.Executor, u *weights.Update, claimed func()) error {
	// sent lists hosts that received the update; ranks there that still lack it get their own copy.
	for sent := map[string]bool{}; ; {
		answers, known, err := openUpdate(group, u)
		if err != nil {
			return err
		}
		var ranks []int
		ours, waits := map[string]bool{}, map[string]<-chan struct{}{}
		for rank, o := range answers {
			switch {
			case o.Has, ours[o.Host], waits[o.Host] != nil:
			case sent[o.Host]:
				ranks = append(ranks, rank)
			default:
				if wait := u.BeginCopy(o.Host, known[o.Host]); wait != nil {
					waits[o.Host] = wait
					continue
				}
				ours[o.Host], ranks = true, append(ranks, rank)
			}
		}
		claimed()
		if len(ranks) > 0 {
			err = send(group, u, ranks)
		}
		for host := range ours {
			sent[host] = true
			u.EndCopy(host)
		}
		if err != nil {
			return err
		}
		if len(ranks) == 0 && len(waits) == 0 {
			return nil
		}
		for _, wait := range waits {
			select {
			case <-wait:
			case <-group.Dead():
				return group.Err()
			}
		}
	}
}

// openUpdate tells the ranks of an update, and where there are copies, of which so much is known.
func openUpdate(group *executor.Executor, u *weights.Update) (list []weights.Opened,
	known map[string]int, err error) {
	told := *u
	told.Elsewhere, known = u.Copies()
	list, err = call(group, calls.WeightsOpen, told)
	note(u, list)
	return list, known, err
}

// note remembers the ranks that have an update.
func note(u *weights.Update, list []weights.Opened) {
	for i := range list {
		u.AddCopy(&list[i])
	}
}

// send sends ranks an update.
func send(group *executor.Executor, u *weights.Update, ranks []int) error {
	list, err := executor.CallBeside(context.Background(), group, calls.WeightsGet, ranks,
		executor.RPCOptions{Timeout: callTimeout}, func(c net.Conn, received uint64) {
			// A rank that misses something says so, or asks again.
			_ = u.Send(c, int64(min(received, uint64(u.Bytes()))))
		})
	note(u, list)
	return err
}
