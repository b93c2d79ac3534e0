package launch

import "testing"

// TestEndInWords pins the texts that failures show, and which ends come after a report.
func TestEndInWords(t *testing.T) {
	for _, c := range []struct {
		end     End
		text    string
		byError bool
	}{
		{End{Reason: "its node was removed"}, "its node was removed", false},
		{End{How: Exited}, "exit status 0", false},
		{End{How: Exited, Code: 1}, "exit status 1", true},
		{End{How: Exited, Code: 2}, "exit status 2", false},
		{End{How: Signalled, Signal: "SIGKILL"}, "signal: SIGKILL", false},
		{End{How: Returned}, "returned", false},
		{End{How: Returned, Reason: "no weights"}, "returned: no weights", true},
		{End{How: ActorLost, Class: "ActorDiedError", Reason: "The node is gone."},
			"ActorDiedError: The node is gone.", false},
		{End{How: Lost, Reason: "its placement group was removed"},
			"its placement group was removed", false},
	} {
		if c.end.String() != c.text || c.end.ByError() != c.byError {
			t.Errorf("%+v: %q, by error: %v", c.end, c.end, c.end.ByError())
		}
	}
}
