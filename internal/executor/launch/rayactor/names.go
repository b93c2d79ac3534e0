package rayactor

import (
	"cmp"
	"fmt"
	"strings"
)

// maxInstance bounds an instance's name, so that the actors' names stay readable in Ray's
// dashboard.
const maxInstance = 64

// Layout is how the ranks divide the model; a size of 0 stands for 1.
type Layout struct {
	// TP, PP and PCP are the sizes of tensor, pipeline and prefill-context parallelism.
	TP, PP, PCP int
}

// ActorName is the name of a rank's actor: eagleray_<instance>_r<rank>, followed by the rank's
// place in each dimension that is larger than one: _TPx, _PPy, _PCPz. Ranks are laid out as in
// the rest of the engine, with tensor parallelism innermost and pipeline stages outermost: rank =
// (pp·PCP + pcp)·TP + tp. The instance must be 1 to 64 letters, digits, dots or hyphens: an
// underscore would make the parts of a name ambiguous.
func ActorName(instance string, rank int, layout Layout) (string, error) {
	if err := checkInstance(instance); err != nil {
		return "", err
	}
	tp, pp, pcp := cmp.Or(layout.TP, 1), cmp.Or(layout.PP, 1), cmp.Or(layout.PCP, 1)
	if tp < 1 || pp < 1 || pcp < 1 {
		return "", fmt.Errorf("a layout of TP %d, PP %d, PCP %d: a size cannot be negative", tp, pp,
			pcp)
	}
	if rank < 0 || rank >= tp*pp*pcp {
		return "", fmt.Errorf("rank %d is not in a world of %d (TP %d, PP %d, PCP %d)", rank,
			tp*pp*pcp, tp, pp, pcp)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "eagleray_%s_r%d", instance, rank)
	if tp > 1 {
		fmt.Fprintf(&b, "_TP%d", rank%tp)
	}
	if pp > 1 {
		fmt.Fprintf(&b, "_PP%d", rank/(tp*pcp))
	}
	if pcp > 1 {
		fmt.Fprintf(&b, "_PCP%d", rank/tp%pcp)
	}
	return b.String(), nil
}

func checkInstance(instance string) error {
	if instance == "" || len(instance) > maxInstance {
		return fmt.Errorf("instance name %q has %d characters, not 1 to %d", instance,
			len(instance), maxInstance)
	}
	for _, c := range instance {
		if !isAlphanumeric(c) && c != '.' && c != '-' {
			return fmt.Errorf("instance name %q has %q, only letters, digits, dots and hyphens may be in it", instance, c)
		}
	}
	return nil
}

func isAlphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
