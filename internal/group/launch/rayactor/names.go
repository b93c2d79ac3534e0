package rayactor

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/link/layout"
)

// maxInstance bounds an instance's name, so that the actors' names stay readable in Ray's
// dashboard.
const maxInstance = 64

// ActorName is the name of a rank's actor: eagleray_<instance>_r<rank>, followed by the rank's
// place in each dimension that is larger than one (layout.Layout.Suffix). The instance must be 1 to
// 64 letters, digits, dots or hyphens: an underscore would make the parts of a name ambiguous.
func ActorName(instance string, rank int, l layout.Layout) (string, error) {
	if err := checkInstance(instance); err != nil {
		return "", err
	}
	if rank < 0 || rank >= l.World() {
		return "", fmt.Errorf("rank %d is not in a world of %d (%v)", rank, l.World(), l)
	}
	return fmt.Sprintf("eagleray_%s_r%d%s", instance, rank, l.Suffix(rank)), nil
}

func checkInstance(instance string) error {
	if instance == "" || len(instance) > maxInstance {
		return fmt.Errorf("instance name %q has %d characters, not 1 to %d", instance,
			len(instance), maxInstance)
	}
	for _, c := range instance {
		if !isAlphanumeric(c) && c != '.' && c != '-' {
			return fmt.Errorf("instance name %q has %q, only letters, digits, dots and hyphens "+
				"may be in it", instance, c)
		}
	}
	return nil
}

func isAlphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
