package state

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/sys/transcripts"
)

// TestTranscripts goes through every order of calls that testdata shows.
func TestTranscripts(t *testing.T) {
	transcripts.Run(t, func(*testing.T) func(string, []string) string {
		var m Machine
		return func(name string, args []string) string {
			before := m.String()
			said := ""
			err := do(&m, name, args, &said)
			if err != nil {
				said = "409 " + err.Error()
				if m.String() != before {
					said += "\nchanged: " + before
				}
			}
			return strings.TrimPrefix(said+"\n"+m.String()+"\n", "\n")
		}
	})
}

func do(m *Machine, name string, args []string, said *string) error {
	arg := func(i int, otherwise string) string {
		if i < len(args) {
			return args[i]
		}
		return otherwise
	}
	switch name {
	case "pause":
		return m.Pause(Mode(arg(0, "abort")))
	case "resume":
		return m.Resume()
	case "sleep":
		level, err := strconv.Atoi(arg(0, "1"))
		if err != nil {
			return err
		}
		return m.Sleep(level, Mode(arg(1, "abort")))
	case "wake_up":
		resumed, err := m.Wake(args)
		if resumed {
			*said = "resumed"
		}
		return err
	case "init":
		return m.Init()
	case "start":
		return m.Start()
	case "update":
		return m.Update()
	case "finish":
		return m.Finish()
	case "fails":
		m.Fail(errors.New("a cause"))
		return nil
	}
	return fmt.Errorf("no such call: %s", name)
}
