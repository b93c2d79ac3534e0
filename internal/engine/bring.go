package engine

import (
	"context"
	"encoding/json"
	"net"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// stage brings an update to the ranks of a group and has them load it. Ranks of the driver's host map its
// memory. To each other host the bytes are sent once: one rank there gets them, and the others, also those
// of other engines, map its memory. It calls claimed once it has claimed hosts, or others have.
func stage(group *executor.Executor, u *weights.Update, claimed func()) error {
	// brought are the hosts to which this has sent it: who does not have it then is sent it too.
	for brought := map[string]bool{}; ; {
		answers, known, err := open(group, u)
		if err != nil {
			return err
		}
		var ranks []int
		ours, waits := map[string]bool{}, map[string]<-chan struct{}{}
		for rank, o := range answers {
			switch {
			case o.Has, ours[o.Host], waits[o.Host] != nil:
			case brought[o.Host]:
				ranks = append(ranks, rank)
			default:
				if wait := u.Claim(o.Host, known[o.Host]); wait != nil {
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
			brought[host] = true
			u.Release(host)
		}
		if err != nil {
			return err
		}
		if len(ranks) == 0 && len(waits) == 0 {
			break
		}
		for _, wait := range waits {
			select {
			case <-wait:
			case <-group.Dead():
				return group.Err()
			}
		}
	}
	_, err := call(group, "weights_load", []byte(u.ID))
	return err
}

// open tells the ranks of an update, and where there are copies, of which so much is known.
func open(group *executor.Executor, u *weights.Update) (list []weights.Opened, known map[string]int,
	err error) {
	told := *u
	told.Elsewhere, known = u.Copies()
	args, err := json.Marshal(told)
	if err != nil {
		return nil, nil, err
	}
	answers, err := call(group, "weights_open", args)
	if err != nil {
		return nil, nil, err
	}
	list, err = opened(answers)
	note(u, list)
	return list, known, err
}

// opened reads what ranks answer; what one does not answer is zero.
func opened(answers [][]byte) ([]weights.Opened, error) {
	list := make([]weights.Opened, len(answers))
	for i, a := range answers {
		if len(a) == 0 {
			continue
		}
		if err := json.Unmarshal(a, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// note remembers the ranks that have an update.
func note(u *weights.Update, list []weights.Opened) {
	for i := range list {
		u.Offer(&list[i])
	}
}

// send sends ranks an update.
func send(group *executor.Executor, u *weights.Update, ranks []int) error {
	args, err := json.Marshal(ranks)
	if err != nil {
		return err
	}
	answers, err := group.Bring(context.Background(), "weights_get", args,
		executor.RPCOptions{Timeout: callTimeout}, ranks, func(c net.Conn, received uint64) {
			// A rank that misses something says so, or asks again.
			_ = u.Send(c, int64(min(received, uint64(u.Bytes()))))
		})
	if err != nil {
		return err
	}
	list, err := opened(answers)
	note(u, list)
	return err
}
