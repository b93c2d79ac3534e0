package batch

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// errTooLong says that a line is longer than what is read.
var errTooLong = errors.New("line is too long")

// lines reads a text line by line, in bounded memory.
type lines struct {
	in  *bufio.Reader
	max int
	// number is that of the line read last, from 1.
	number int
	// size is the length of the text up to the end of the line read last, and torn says that this
	// has no newline.
	size int64
	torn bool
	buf  []byte
}

func newLines(r io.Reader, most int) *lines {
	return &lines{in: bufio.NewReaderSize(r, 64<<10), max: most}
}

// next returns the next line without its end, valid until the call after, or errTooLong in its
// place, or io.EOF.
func (l *lines) next() ([]byte, error) {
	l.buf = l.buf[:0]
	long := false
	for first := true; ; first = false {
		piece, err := l.in.ReadSlice('\n')
		l.size += int64(len(piece))
		if err == io.EOF && first && len(piece) == 0 {
			return nil, io.EOF
		}
		if long = long || len(l.buf)+len(piece) > l.max+2; !long {
			l.buf = append(l.buf, piece...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		l.torn = err == io.EOF
		break
	}
	l.number++
	text := bytes.TrimRight(l.buf, "\r\n")
	if long || len(text) > l.max {
		return nil, errTooLong
	}
	return text, nil
}
