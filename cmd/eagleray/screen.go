package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/logging"
)

// screen is where a conversation is shown. Colours and motion are for terminals only.
type screen struct {
	out      *cli.Printer
	terminal bool
	colours  bool
}

func newScreen(out *os.File) *screen {
	terminal := isTerminal(out)
	return &screen{out: cli.PrintTo(out), terminal: terminal,
		colours: terminal && logging.Colours()}
}

// say prints a piece of what a model says. A terminal is sent no control characters but ends of
// lines and tabs: what they would do is not the model's to say.
func (s *screen) say(piece string) {
	if s.terminal {
		piece = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				return unicode.ReplacementChar
			}
			return r
		}, piece)
	}
	fmt.Fprint(s.out, piece)
}

// note prints a line of the program's own, told apart from the model's.
func (s *screen) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if s.colours {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	fmt.Fprintln(s.out, text)
}

// spinEvery is how often the spinner turns.
const spinEvery = 100 * time.Millisecond

// spin shows that an answer is awaited until stop is called, which leaves the line clean.
func (s *screen) spin() (stop func()) {
	if !s.terminal || !s.colours {
		return func() {}
	}
	done := make(chan struct{})
	var turning sync.WaitGroup
	turning.Go(func() {
		tick := time.NewTicker(spinEvery)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				if i > 0 {
					fmt.Fprint(s.out, "\r \r")
				}
				return
			case <-tick.C:
				fmt.Fprintf(s.out, "\r%c", `|/-\`[i%4])
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		turning.Wait()
	})
}
