package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// TestTranscripts replays testdata/*.txt (see package transcripts). Each command prints the
// failure, or until when which suspicion waits. Commands:
//
//	group RANKS                      ranks 0, 1, … on node-a with pids 100, 101, …
//	                                 Example: group 2
//	meet RANKS                       the same, but the ranks are on their way
//	                                 Example: meet 2
//	joined                           they have come
//	lost RANK CAUSE                  ConnectionLost
//	                                 Example: lost 1 connection lost: its process is gone
//	closed RANK REASON               ConnectionClosed
//	                                 Example: closed 1 the raylet of its node has ended
//	exit RANK END [reason] [stderr=LINE]
//	                                 Exited; END is code=N, signal=NAME, returned, actor=CLASS,
//	                                 lost or unknown
//	                                 Example: exit 1 actor=ActorDiedError The node is gone.
//	report RANK [phase=P] [step=N] [stack=S] [follows] [missing=R,R] MESSAGE
//	                                 Reported
//	                                 Example: report 1 phase=load no such tensor
//	corrupt RANK CAUSE               Corrupt
//	                                 Example: corrupt 1 record of unknown kind 250
//	overdue RANK [step=N] CAUSE      Overdue
//	                                 Example: overdue -1 step=7 no result after 5m0s
//	rank RANK [step=N] [done] [phase=P] [detail=N] [stopped] [busy]
//	                                 what the rank is doing from now on
//	                                 Example: rank 1 step=7 phase=forward detail=3
//	after D                          the time goes on, and each tick comes when it is wanted
//	                                 Example: after 5ms
//	late D                           the time goes on, and no tick comes
//	                                 Example: late 3s
//	tick                             a tick now
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(t *testing.T) func(string, []string) string {
		tr := &transcript{T: t}
		return tr.command
	})
}

type transcript struct {
	*testing.T
	v    *Verdict
	now  time.Duration // since the group began
	seen []Seen
	said string // what was printed last
}

// epoch is when groups of tests begin.
var epoch = time.Unix(0, 0)

func ranks(n int) []Rank {
	list := make([]Rank, n)
	for i := range list {
		list[i] = Rank{Node: "node-a", PID: 100 + i}
	}
	return list
}

func (tr *transcript) command(name string, args []string) string {
	tr.Helper()
	if name == "joined" {
		tr.v.Step(epoch.Add(tr.now), Joined{})
		return tr.say()
	}
	if name == "group" || name == "meet" {
		n := tr.number(args[0])
		*tr = transcript{T: tr.T, v: New(ranks(n)), seen: make([]Seen, n)}
		if name == "group" {
			tr.v.Step(epoch, Joined{})
		}
		return ""
	}
	if name == "after" || name == "late" {
		d, err := time.ParseDuration(args[0])
		if err != nil {
			tr.Fatal(err)
		}
		end := tr.now + d
		for name == "after" {
			at, ok := tr.v.Deadline()
			if !ok || at.Sub(epoch) > end {
				break
			}
			tr.now = max(tr.now, at.Sub(epoch))
			tr.v.Tick(epoch.Add(tr.now))
		}
		said := tr.say()
		tr.now = end
		return said
	}
	if name == "tick" {
		tr.v.Tick(epoch.Add(tr.now))
		return tr.say()
	}
	rank := tr.number(args[0])
	fields, text := options(args[1:])
	if name == "rank" {
		tr.seen[rank] = tr.status(fields, text)
		return ""
	}
	tr.v.Step(epoch.Add(tr.now), tr.event(name, rank, fields, text))
	return tr.say()
}

// options splits arguments into NAME=VALUE and what follows the last of those.
func options(args []string) (fields map[string]string, text []string) {
	fields = map[string]string{}
	for i, a := range args {
		name, value, ok := strings.Cut(a, "=")
		switch {
		case ok:
			fields[name] = value
		case slices.Contains([]string{"follows", "done", "stopped", "busy", "returned", "unknown",
			"lost", "cut", "disagrees", "unrelated"}, a):
			fields[a] = ""
		default:
			return fields, args[i:]
		}
	}
	return fields, nil
}

func (tr *transcript) event(name string, rank int, fields map[string]string, words []string) Event {
	text := strings.Join(words, " ")
	_, cut := fields["cut"]
	switch name {
	case "lost":
		return ConnectionLost{rank, text, cut}
	case "closed":
		return ConnectionClosed{rank, text, cut}
	case "corrupt":
		return Corrupt{rank, text}
	case "exit":
		x := Exited{Rank: rank, Node: "node-b", PID: 200 + rank, End: launch.End{Reason: text}}
		if line := fields["stderr"]; line != "" {
			x.Stderr = []string{line}
		}
		for f, value := range fields {
			switch f {
			case "code":
				x.End.How, x.End.Code = launch.Exited, tr.number(value)
			case "signal":
				x.End.How, x.End.Signal = launch.Signalled, value
			case "returned":
				x.End.How = launch.Returned
			case "actor":
				x.End.How, x.End.Class = launch.ActorLost, value
			case "lost":
				x.End.How = launch.Lost
			}
		}
		return x
	case "report":
		r := Reported{Rank: rank, Phase: fields["phase"], Message: text, Stack: fields["stack"],
			Seen: tr.seen}
		_, r.Follows = fields["follows"]
		_, r.Disagrees = fields["disagrees"]
		_, r.Unrelated = fields["unrelated"]
		if s := fields["step"]; s != "" {
			r.Step = uint64(tr.number(s))
		}
		for m := range strings.SplitSeq(fields["missing"], ",") {
			if m != "" {
				r.Missing = append(r.Missing, tr.number(m))
			}
		}
		return r
	case "overdue":
		o := Overdue{Rank: rank, Cause: text, Seen: tr.seen}
		if s := fields["step"]; s != "" {
			o.Step = uint64(tr.number(s))
		}
		return o
	}
	tr.Fatalf("unknown command %q", name)
	return nil
}

func (tr *transcript) status(fields map[string]string, text []string) (s Seen) {
	if len(text) > 0 {
		tr.Fatalf("rank: unknown %q", text)
	}
	for name, value := range fields {
		switch name {
		case "step":
			s.Status.Started = uint64(tr.number(value))
			if _, done := fields["done"]; done {
				s.Status.Finished = s.Status.Started
			}
		case "phase":
			for p := status.Phase(0); p.String() != value; p++ {
				if p > 100 {
					tr.Fatalf("no phase %q", value)
				}
				s.Status.Phase = p + 1
			}
		case "detail":
			s.Status.Detail = uint32(tr.number(value))
		case "stopped":
			s.Held = "its process is stopped"
		case "busy":
			s.Busy = true
		}
	}
	return s
}

// say prints what is decided, or what is waited for, where it has changed.
func (tr *transcript) say() string {
	var s string
	if f := tr.v.Failure(); f != nil {
		s = fmt.Sprintf("failure: %v", f)
		if f.Detail != "" {
			s += " [detail: " + f.Detail + "]"
		}
		if len(f.Stderr) > 0 {
			s += fmt.Sprintf(" %q", f.Stderr)
		}
		s += map[Extent]string{NoRank: " (it may live)", AllRanks: " (all are lost)"}[f.Extent]
		if f.Unrelated {
			s += " (by no request)"
		}
	} else if x, due := tr.v.next(); x != nil {
		s = fmt.Sprintf("until %v: %v", due.Sub(epoch), x.failure)
	}
	if s == tr.said {
		return ""
	}
	tr.said = s
	return fmt.Sprintf("%v %s\n", tr.now, s)
}

func (tr *transcript) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		tr.Fatal(err)
	}
	return n
}
