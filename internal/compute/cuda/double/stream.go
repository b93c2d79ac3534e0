package double

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
)

// enqueue queues what a stream is asked for, or records it.
func (c *Context) enqueue(w work, s driver.Stream) error {
	if err := c.begin(w.call); err != nil {
		return err
	}
	y, err := c.streamOf(w.call, s)
	if err != nil {
		return err
	}
	for _, b := range [][]byte{w.to, w.from} {
		if len(b) > 0 && !c.isPinned(b) {
			return invalid(w.call, "%d bytes of the host are not pinned", len(b))
		}
	}
	if y.capture != nil {
		*y.capture = append(*y.capture, w)
		if w.gather != nil {
			w.gather.recorded(1)
		}
		return nil
	}
	y.queue = append(y.queue, w)
	return nil
}

func (c *Context) streamOf(call string, s driver.Stream) (*stream, error) {
	if s == 0 || int(s) > len(c.streams) {
		return nil, invalid(call, "stream %d of %d", s, len(c.streams))
	}
	return c.streams[s-1], nil
}

// Upload implements driver.Context.
func (c *Context) Upload(dst driver.Ptr, src []byte, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueue(work{call: "cuMemcpyHtoDAsync_v2", dst: dst, from: src}, s)
}

// Download implements driver.Context.
func (c *Context) Download(dst []byte, src driver.Ptr, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueue(work{call: "cuMemcpyDtoHAsync_v2", to: dst, src: src}, s)
}

// Copy implements driver.Context.
func (c *Context) Copy(dst, src driver.Ptr, bytes uint64, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueue(work{call: "cuMemcpyDtoDAsync_v2", dst: dst, src: src, bytes: bytes}, s)
}

// Fill implements driver.Context.
func (c *Context) Fill(dst driver.Ptr, value byte, bytes uint64, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueue(work{call: "cuMemsetD8Async", dst: dst, bytes: bytes, value: value}, s)
}

// Limits of a launch that all architectures have.
const (
	mostThreads = 1024
	mostBlocks  = 65535 // in y and z
)

// Launch implements driver.Context.
func (c *Context) Launch(l *driver.Launch, s driver.Stream) error {
	const call = "cuLaunchKernel"
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.Function == 0 || int(l.Function) > len(c.functions) {
		return &driver.Error{Call: call, Code: 400, Name: "CUDA_ERROR_INVALID_HANDLE"}
	}
	f := c.functions[l.Function-1]
	g, b := l.Grid, l.Block
	threads := int(b[0]) * int(b[1]) * int(b[2])
	if err := c.decoded(call, f.kernel); err != nil {
		return err
	}
	switch {
	case g[0] == 0 || g[1] == 0 || g[2] == 0 || g[0] > 1<<31-1 || g[1] > mostBlocks ||
		g[2] > mostBlocks:
		return invalid(call, "%s: grid %v", f.kernel.Name, g)
	case threads == 0 || threads > mostThreads ||
		f.kernel.MaxThreads > 0 && threads > f.kernel.MaxThreads:
		return invalid(call, "%s: block %v of at most %d threads", f.kernel.Name, b,
			f.kernel.MaxThreads)
	case int(l.Shared) > f.shared, int(l.Shared+f.kernel.StaticShared) > c.info.Shared:
		return invalid(call, "%s: %d bytes of shared memory, %d allowed", f.kernel.Name, l.Shared,
			f.shared)
	}
	copied := *l
	params := make([]byte, f.kernel.ParamBytes)
	copy(params, unsafe.Slice((*byte)(l.Params), len(params)))
	return c.enqueue(work{call: call, launch: &copied, params: params}, s)
}

// Synchronize implements driver.Context.
func (c *Context) Synchronize(s driver.Stream) error {
	const call = "cuStreamSynchronize"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart(call); err != nil {
		return err
	}
	y, err := c.streamOf(call, s)
	if err != nil {
		return err
	}
	return c.run(y)
}

// run does all that a stream was asked for. Other threads have their turn between two works.
func (c *Context) run(y *stream) error {
	for c.lost == nil && len(y.queue) > 0 {
		w := y.queue[0]
		y.queue = y.queue[1:]
		if c.lost = c.do(&w); c.lost != nil {
			break
		}
		c.mu.Unlock()
		c.mu.Lock()
	}
	return c.lost
}

// runAll does all that was asked for.
func (c *Context) runAll() error {
	for _, y := range c.streams {
		if err := c.run(y); err != nil {
			return err
		}
	}
	return c.lost
}

func (c *Context) do(w *work) error {
	var err error
	switch {
	case w.launch != nil:
		return c.execute(w)
	case w.call == eventRecord:
		return nil
	case w.gather != nil:
		err = w.gather.do(w)
	case w.product != nil:
		err = c.multiply(w.product)
	case w.from != nil:
		err = c.memory.Write(uint64(w.dst), w.from)
	case w.to != nil:
		err = c.memory.Read(w.to, uint64(w.src))
	case w.src != 0:
		err = c.memory.Copy(uint64(w.dst), uint64(w.src), w.bytes)
	default:
		err = c.memory.Fill(uint64(w.dst), w.value, w.bytes)
	}
	if err != nil {
		return &driver.Error{Call: w.call, Code: driver.IllegalAddress,
			Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Detail: err.Error()}
	}
	return nil
}

// execute runs a kernel. A fault of it is an illegal address, as it would be on a GPU that noticed.
func (c *Context) execute(w *work) error {
	l, f := w.launch, c.functions[w.launch.Function-1]
	stats, err := c.machine.Launch(f.kernel, l.Grid, l.Block, l.Shared, w.params)
	if err != nil {
		code, name := driver.LaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"
		if fault := (*ptx.Fault)(nil); errors.As(err, &fault) {
			code, name = driver.IllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"
		}
		return &driver.Error{Call: "cuStreamSynchronize", Code: code, Name: name,
			Detail: fmt.Sprintf("kernel %s, grid %v: %v", f.kernel.Name, l.Grid, err)}
	}
	if c.d.Observe != nil {
		c.d.Observe(f.kernel.Name, stats)
	}
	return nil
}

// NewEvent implements driver.Context.
func (c *Context) NewEvent() (driver.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	return c.events, c.begin("cuEventCreate")
}

// eventRecord is what does nothing in a stream.
const eventRecord = "cuEventRecord"

// Record implements driver.Context.
func (c *Context) Record(_ driver.Event, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enqueue(work{call: eventRecord}, s)
}

// Elapsed implements driver.Context: a machine has no time.
func (c *Context) Elapsed(_, _ driver.Event) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return 0, c.apart("cuEventElapsedTime")
}

// BeginCapture implements driver.Context.
func (c *Context) BeginCapture(s driver.Stream) error {
	const call = "cuStreamBeginCapture_v2"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart(call); err != nil {
		return err
	}
	y, err := c.streamOf(call, s)
	if err != nil {
		return err
	}
	y.capture, c.recorder = new([]work), unix.Gettid()
	return nil
}

// EndCapture implements driver.Context.
func (c *Context) EndCapture(s driver.Stream) (driver.Graph, error) {
	const call = "cuStreamEndCapture"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(call); err != nil {
		return 0, err
	}
	y, err := c.streamOf(call, s)
	if err != nil {
		return 0, err
	}
	c.graphs = append(c.graphs, *y.capture)
	y.capture, c.recorder = nil, 0
	return driver.Graph(len(c.graphs)), nil
}

// Replay implements driver.Context.
func (c *Context) Replay(g driver.Graph, s driver.Stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin("cuGraphLaunch"); err != nil {
		return err
	}
	for _, w := range c.graphs[g-1] {
		if err := c.enqueue(w, s); err != nil {
			return err
		}
	}
	return nil
}

// Destroy implements driver.Context.
func (c *Context) Destroy(g driver.Graph) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.graphs[g-1] {
		if w.gather != nil {
			w.gather.recorded(-1)
		}
	}
	c.graphs[g-1] = nil
	return c.begin("cuGraphExecDestroy")
}
