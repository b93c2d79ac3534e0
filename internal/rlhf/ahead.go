package rlhf

import "io"

// ahead reads from a connection while its user sums and keeps what came before, in a bounded number of
// chunks. The connection must be closed before wait is called.
type ahead struct {
	filled chan chunk
	empty  chan []byte
	// quit is closed when nobody reads any more.
	quit chan struct{}
	now  chunk
	left []byte
}

// chunk is what one Read has brought; err comes after its bytes.
type chunk struct {
	data []byte
	err  error
}

const (
	aheadChunks = 4
	aheadSize   = 256 << 10
)

// readAhead begins to read from r.
func readAhead(r io.Reader) *ahead {
	a := &ahead{filled: make(chan chunk, aheadChunks), empty: make(chan []byte, aheadChunks),
		quit: make(chan struct{})}
	for range aheadChunks {
		a.empty <- make([]byte, aheadSize)
	}
	go a.fill(r)
	return a
}

func (a *ahead) fill(r io.Reader) {
	defer close(a.filled)
	for {
		var b []byte
		select {
		case b = <-a.empty:
		case <-a.quit:
			return
		}
		n, err := r.Read(b[:aheadSize])
		a.filled <- chunk{b[:n], err} // never waits: there are as many places as chunks
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (a *ahead) Read(dst []byte) (int, error) {
	for len(a.left) == 0 {
		if a.now.err != nil {
			return 0, a.now.err
		}
		if a.now.data != nil {
			a.empty <- a.now.data
		}
		a.now = <-a.filled // its last one has an error
		a.left = a.now.data
	}
	n := copy(dst, a.left)
	a.left = a.left[n:]
	return n, nil
}

// wait returns once nothing is read any more.
func (a *ahead) wait() {
	close(a.quit)
	for range a.filled {
	}
}
