package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/peterh/liner"
)

// editor reads messages: typed at a terminal with editing and history, else a line each.
type editor struct {
	lines *bufio.Scanner // not at a terminal
	line  *liner.State
	// A terminal sends Ctrl-C as a key only while the line editor reads, else as a signal: pressed
	// has the signals, keys takes what the line editor reads.
	pressed <-chan struct{}
	release func()
	keys    *os.File
}

// errAborted is Ctrl-C at the prompt.
var errAborted = errors.New("aborted")

// newEditor reads from in, which is the program's standard input when it is a terminal.
func newEditor(ctx context.Context, in *os.File) *editor {
	if !isTerminal(in) || !isTerminal(os.Stdout) {
		e := &editor{lines: bufio.NewScanner(in)}
		e.lines.Buffer(nil, 16<<20)
		return e
	}
	e := &editor{}
	e.line, e.keys = newLiner(in)
	e.line.SetCtrlCAborts(true)
	e.pressed, e.release = catchInterrupts(ctx)
	return e
}

// terminal tells whether input and output are a terminal.
func (e *editor) terminal() bool { return e.line != nil }

// close gives the terminal back as it was.
func (e *editor) close() {
	if e.line != nil {
		io.WriteString(os.Stdout, pasteOff)
		// An error would mean that the terminal is gone.
		_ = e.line.Close()
		e.release()
	}
}

// answering returns a context for an answer, which Ctrl-C ends; done must follow it.
func (e *editor) answering(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-e.pressed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-watched
	}
}

// dialogue is what is done with messages.
type dialogue struct {
	ask func(ctx context.Context, text string) error
	// command takes a message of a terminal that is for the program; it may leave. nil takes none.
	command func(text string) (is, leave bool)
	// leave says how to leave, ended that an answer was ended, "" for not at all.
	leave, ended string
}

// each asks what is read, and says whether that is over: it may also be left.
func (e *editor) each(ctx context.Context, s *screen, x dialogue) (over bool, err error) {
	for {
		text, err := e.read(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return true, nil
		case errors.Is(err, errAborted):
			s.note("%s", x.leave)
			continue
		case err != nil:
			return false, err
		case strings.TrimSpace(text) == "":
			continue
		case !e.terminal():
			if err := x.ask(ctx, text); err != nil {
				return false, err
			}
			continue
		}
		if x.command != nil {
			if is, leave := x.command(text); leave {
				return false, nil
			} else if is {
				continue
			}
		}
		answering, done := e.answering(ctx)
		err = x.ask(answering, text)
		ended := answering.Err() != nil
		done()
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case ended && x.ended != "":
			s.note("%s", x.ended)
		case err != nil && !ended:
			s.note("%v", err)
		}
	}
}

// block begins and ends a message of several lines.
const block = `"""`

// read returns the next message, without the line's end; io.EOF at the end of the input, errAborted
// at Ctrl-C, and ctx's error when that is over first.
func (e *editor) read(ctx context.Context) (string, error) {
	if !e.terminal() {
		return e.prompt(ctx, "")
	}
	line, err := e.prompt(ctx, "> ")
	if err != nil {
		return "", err
	}
	var more []string
	if rest, ok := strings.CutPrefix(strings.TrimSpace(line), block); ok {
		for {
			if text, ok := strings.CutSuffix(rest, block); ok {
				line = strings.Join(append(more, text), "\n")
				break
			}
			if len(more) > 0 || rest != "" {
				more = append(more, rest)
			}
			if rest, err = e.prompt(ctx, ". "); err != nil {
				return "", err
			}
		}
		line = strings.TrimSuffix(line, "\n")
	} else {
		for strings.HasSuffix(line, `\`) {
			more = append(more, strings.TrimSuffix(line, `\`))
			if line, err = e.prompt(ctx, ". "); err != nil {
				return "", err
			}
		}
		line = strings.Join(append(more, line), "\n")
	}
	if strings.TrimSpace(line) != "" {
		e.line.AppendHistory(pasted.Replace(line))
	}
	return line, nil
}

// prompt reads one line. When ctx ends first, the goroutine that waits for the terminal ends with
// the process.
func (e *editor) prompt(ctx context.Context, text string) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		if e.line != nil {
			line, err := e.line.Prompt(text)
			done <- read{unpasted.Replace(line), err}
			return
		}
		if e.lines.Scan() {
			done <- read{e.lines.Text(), nil}
			return
		}
		done <- read{"", cmp.Or(e.lines.Err(), io.EOF)}
	}()
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-e.pressed:
			// An error would mean that there is no input any more, which the reader is told.
			_, _ = e.keys.Write([]byte{ctrlC})
		case r := <-done:
			if errors.Is(r.err, liner.ErrPromptAborted) {
				return "", errAborted
			}
			return r.line, r.err
		}
	}
}

// ctrlC is the key that ends a line editor's line.
const ctrlC = 'C' - '@'

// What a terminal sends around pasted text, once it is told to.
const (
	pasteOn    = "\x1b[?2004h"
	pasteOff   = "\x1b[?2004l"
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// pasted shows the ends of lines and tabs of pasted text by their symbols, so that they do not end
// the message; unpasted is the way back.
var (
	pasted   = strings.NewReplacer("\r\n", "␤", "\r", "␤", "\n", "␤", "\t", "␉")
	unpasted = strings.NewReplacer("␤", "\n", "␉", "\t")
)

// newLiner makes a line editor that takes pasted lines as one message. It reads what this program
// makes of the terminal's input, which is what is written to keys: the library takes os.Stdin once,
// when it starts.
func newLiner(in *os.File) (line *liner.State, keys *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		return liner.NewLiner(), nil
	}
	io.WriteString(os.Stdout, pasteOn)
	go filterPaste(w, in)
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	os.Stdin = r
	return liner.NewLiner(), w
}

// filterPaste copies input until it ends, with pasted text in one line.
func filterPaste(out io.WriteCloser, in io.Reader) {
	defer out.Close()
	var pending []byte
	inside := false
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		pending = append(pending, buf[:n]...)
		for {
			mark := pasteBegin
			if inside {
				mark = pasteEnd
			}
			text, rest, found := bytes.Cut(pending, []byte(mark))
			if !found {
				// The beginning of a mark waits for its end; a bare Escape does not.
				keep := partOf(text, mark)
				text, rest = text[:len(text)-keep], text[len(text)-keep:]
			}
			if inside {
				text = []byte(pasted.Replace(string(text)))
			}
			if _, err := out.Write(text); err != nil {
				return
			}
			pending = append([]byte(nil), rest...)
			if !found {
				break
			}
			inside = !inside
		}
		if err != nil {
			return
		}
	}
}

// partOf is how many bytes at the end of text, of at least two, begin mark.
func partOf(text []byte, mark string) int {
	for n := min(len(text), len(mark)-1); n > 1; n-- {
		if bytes.HasSuffix(text, []byte(mark[:n])) {
			return n
		}
	}
	return 0
}
