package hub

import (
	"sync"
	"time"
)

// tracker adds up the progress of files that are downloaded at the same time.
type tracker struct {
	call func(Progress)

	mu    sync.Mutex
	files map[string]*tracked
}

type tracked struct {
	done, total int64
	last        time.Time
}

func newTracker(call func(Progress), infos []fileInfo) *tracker {
	t := &tracker{call: call, files: map[string]*tracked{}}
	for _, f := range infos {
		t.files[f.name] = &tracked{total: f.size}
	}
	return t
}

// resize takes over the size of a file that has changed.
func (t *tracker) resize(f fileInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.files[f.name] = &tracked{total: f.size}
}

// report notes that a file has done bytes, and passes it on unless that was just done.
func (t *tracker) report(f fileInfo, done int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	file := t.files[f.name]
	file.done = done
	if now.Sub(file.last) >= reportEvery {
		file.last = now
		t.send(f.name, file)
	}
}

// finish notes that a file is whole.
func (t *tracker) finish(f fileInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	file := t.files[f.name]
	file.done, file.total = f.size, f.size
	t.send(f.name, file)
}

func (t *tracker) send(name string, file *tracked) {
	if t.call == nil {
		return
	}
	p := Progress{File: name, Done: file.done, Total: file.total}
	for _, other := range t.files {
		p.AllDone += other.done
		p.AllTotal += max(other.total, other.done)
	}
	t.call(p)
}
