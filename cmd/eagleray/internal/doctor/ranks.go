package doctor

import (
	"fmt"
	"strings"
	"time"
)

// RankFacts are what a rank of a group that was started for the check says of itself.
type RankFacts struct {
	Rank int
	Node string
	// Skew is how far its clock is ahead of the driver's, known to half of Trip, the time of the
	// call.
	Skew, Trip time.Duration
	// ISA is what it computes with, Version that of its program.
	ISA      string
	Niceness int
}

// maxSkew is how far clocks may be apart: certificates and tokens have a beginning and an end.
const maxSkew = 5 * time.Second

// Ranks judges a group that was started, answered and was measured.
func Ranks(facts []RankFacts, took time.Duration) []Result {
	nodes := map[string]bool{}
	isas := map[string]bool{}
	var skewed, nice []string
	for _, f := range facts {
		nodes[f.Node], isas[f.ISA] = true, true
		if off := max(f.Skew, -f.Skew) - f.Trip/2; off > maxSkew {
			skewed = append(skewed, fmt.Sprintf("rank %d on %s by %.1f s", f.Rank, f.Node,
				f.Skew.Seconds()))
		}
		if f.Niceness > 0 {
			nice = append(nice, fmt.Sprintf("rank %d on %s at %d", f.Rank, f.Node, f.Niceness))
		}
	}
	named := func(name string, r Result) Result {
		r.Check = name
		return r
	}
	results := []Result{named("group",
		ok("%d ranks on %d nodes started, met each other and answered a token after %.1f s",
			len(facts), len(nodes), took.Seconds()))}
	clocks := ok("within %v of the driver's", maxSkew)
	if skewed != nil {
		clocks = bad(Warn, "%s|certificates and logs of the nodes disagree on the time|run "+
			"chrony or ntpd on every node", strings.Join(skewed, ", "))
	}
	sets := ok("%s on all ranks", facts[0].ISA)
	if len(isas) > 1 {
		sets = bad(Warn, "%d kinds|a request has other bits on other nodes, and the slowest sets "+
			"the pace|--cpu-isa with what all have", len(isas))
	}
	level := ok("0 on all ranks")
	if nice != nil {
		level = bad(Warn, "%s|any busy process of their nodes goes before them|let workers take "+
			"niceness "+
			"0: CAP_SYS_NICE, or RAY_worker_niceness=0", strings.Join(nice, ", "))
	}
	return append(results, named("clocks", clocks), named("kernels", sets), named("workers", level))
}

// NotStarted is the result of a group that could not be started, or does not answer.
func NotStarted(err error) Result {
	r := bad(Fail, "%s|no request would be answered|see docs/errors.md for this error",
		plain(err))
	r.Check = "group"
	return r
}

// NotTried is the result of a group that is not started because nodes are not well.
func NotTried() Result {
	r := bad(Warn, "not started|what is wrong with the nodes would keep it waiting|mend that, "+
		"then run doctor again")
	r.Check = "group"
	return r
}

// NotSurveyed is the result of a cluster that cannot be looked at.
func NotSurveyed(err error) Result {
	r := bad(Fail, "%s|no node can be looked at|see docs/errors.md for this error",
		plain(err))
	r.Check = "nodes"
	return r
}
