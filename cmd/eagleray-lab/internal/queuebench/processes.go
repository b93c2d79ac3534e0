package queuebench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

// Orders are the first byte of every record to the readers.
const (
	opEcho   = iota + 1 // the first reader replies with the number in bytes 8 to 16
	opFloor             // round trips with bare futexes follow, up to the number in bytes 8 to 16
	opUsage             // every reader replies with its processor time
	opSink              // nothing
	opStream            // as many large payloads as bytes 8 to 16 say follow over the floor
	opMark              // every reader replies
	// every reader decodes the plan from byte 16 on, the first replies with a result
	opStep
	opStop
)

const minSize = 16

// bench is the driver's side.
type bench struct {
	Options
	end     driverEnd
	floor   floor
	readers []*exec.Cmd
	stdins  []io.Closer // of the readers: each ends when its own is closed
	exited  sync.WaitGroup

	record []byte
	trips  uint64

	// cause is why a reader ended before it should have.
	cause    atomic.Pointer[error]
	stopping atomic.Bool
}

func start(o Options) (*bench, error) {
	t, err := newTransport(o.Transport)
	if err != nil {
		return nil, err
	}
	b := &bench{Options: o, record: make([]byte, o.Size)}
	var files []*os.File
	if b.end, files, err = t.listen(o.Readers); err != nil {
		return nil, err
	}
	if b.floor, err = t.newFloor(o); err != nil {
		return nil, errors.Join(err, b.end.Close())
	}
	for rank := range o.Readers {
		if err := b.startReader(rank, append([]*os.File{b.floor.given()}, files...)); err != nil {
			return nil, errors.Join(err, b.stop())
		}
	}
	return b, nil
}

func (b *bench) startReader(rank int, files []*os.File) error {
	args := append(b.Command[1:len(b.Command):len(b.Command)], b.Transport, strconv.Itoa(rank),
		strconv.Itoa(b.ReplySize), strconv.Itoa(b.Size))
	c := exec.Command(b.Command[0], args...)
	c.ExtraFiles = files
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		return fmt.Errorf("pipe to reader %d: %w", rank, err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start reader %d: %w", rank, err)
	}
	b.readers = append(b.readers, c)
	b.stdins = append(b.stdins, stdin)
	b.exited.Go(func() {
		err := c.Wait()
		if b.stopping.Load() && err == nil {
			return
		}
		if err == nil {
			err = errors.New("without being asked to")
		}
		err = fmt.Errorf("reader %d (pid %d) ended: %w", rank, c.Process.Pid, err)
		b.cause.CompareAndSwap(nil, &err)
		_ = b.end.Close() // it ends waits; the cause says more than an error here
		b.floor.fail()
	})
	return nil
}

// stop ends the readers and returns why one ended early, if one did.
func (b *bench) stop() error {
	b.stopping.Store(true)
	for _, l := range b.stdins {
		_ = l.Close()
	}
	b.exited.Wait()
	err := errors.Join(b.end.Close(), b.floor.close())
	if cause := b.cause.Load(); cause != nil {
		return *cause
	}
	return err
}

// order sends a record of an order and a number.
func (b *bench) order(op byte, n uint64) error {
	b.record[0] = op
	binary.LittleEndian.PutUint64(b.record[8:], n)
	return b.end.Send(b.record, time.Time{})
}

// roundTrip sends a record and receives the first reader's reply.
func (b *bench) roundTrip() (time.Duration, error) {
	b.trips++
	began := time.Now()
	if err := b.order(opEcho, b.trips); err != nil {
		return 0, err
	}
	rank, reply, err := b.end.Recv(time.Time{})
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	if rank != 0 || len(reply) != b.ReplySize || binary.LittleEndian.Uint64(reply[8:]) != b.trips {
		return 0, fmt.Errorf("reply of %d bytes from reader %d to record %d", len(reply), rank,
			b.trips)
	}
	return took, nil
}

// all gives an order to which every reader replies.
func (b *bench) all(op byte, got func(rank int, n uint64)) error {
	if err := b.order(op, 0); err != nil {
		return err
	}
	for range b.Readers {
		rank, reply, err := b.end.Recv(time.Time{})
		if err != nil {
			return err
		}
		if len(reply) != minSize {
			return fmt.Errorf("reply of %d bytes from reader %d to order %d", len(reply), rank, op)
		}
		if got != nil {
			got(rank, binary.LittleEndian.Uint64(reply[8:]))
		}
	}
	return nil
}

// processorTimes returns what the processes have used so far, this one first.
func (b *bench) processorTimes() ([]time.Duration, error) {
	times := make([]time.Duration, 1+b.Readers)
	err := b.all(opUsage, func(rank int, n uint64) { times[1+rank] = time.Duration(n) })
	times[0] = processorTime()
	return times, err
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // it cannot fail for this process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Child is a reader's process: args are those that Run appends to its command, and the descriptors
// from 3 on those it passes. It returns when standard input ends, which Run holds.
func Child(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("queuebench: reader with %d arguments", len(args))
	}
	t, err := newTransport(args[0])
	if err != nil {
		return fmt.Errorf("queuebench: %w", err)
	}
	rank, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("queuebench: rank: %w", err)
	}
	size, err := strconv.Atoi(args[2])
	if err != nil || size < minSize || size > largePayload {
		return fmt.Errorf("queuebench: reply size %q", args[2])
	}
	sizeThere, err := strconv.Atoi(args[3])
	if err != nil || sizeThere < minSize || sizeThere > largePayload {
		return fmt.Errorf("queuebench: size %q", args[3])
	}
	f, err := t.openFloor(os.NewFile(3, "floor"), size, sizeThere)
	if err != nil {
		return fmt.Errorf("queuebench: %w", err)
	}
	end, err := t.join(4, rank)
	if err != nil {
		return fmt.Errorf("queuebench: %w", err)
	}
	// The caller of Recv should be locked to its thread: see package ring.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var released atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the end of it is all that counts
		released.Store(true)
		_ = end.Close()
		f.fail()
	}()
	err = serve(end, f, rank, make([]byte, size))
	if released.Load() {
		err = nil
	}
	if err := errors.Join(err, end.Close(), f.close()); err != nil {
		return fmt.Errorf("queuebench: reader %d: %w", rank, err)
	}
	return nil
}

// serve carries out orders.
func serve(end queue.Port, f floor, rank int, reply []byte) error {
	var steps stepReader
	for {
		record, err := end.Recv(time.Time{})
		if err != nil {
			return err
		}
		if len(record) < minSize {
			return fmt.Errorf("record of %d bytes", len(record))
		}
		n := binary.LittleEndian.Uint64(record[8:])
		switch record[0] {
		case opEcho:
			if rank != 0 {
				continue
			}
			binary.LittleEndian.PutUint64(reply[8:], n)
			err = end.Send(reply, time.Time{})
		case opFloor:
			err = f.answer(n, rank == 0)
		case opStream:
			s, ok := f.(stream)
			if !ok {
				return errors.New("payloads over a floor that has none")
			}
			err = s.absorb(n, rank == 0)
		case opUsage:
			binary.LittleEndian.PutUint64(reply[8:], uint64(processorTime()))
			err = end.Send(reply[:minSize], time.Time{})
		case opMark:
			err = end.Send(reply[:minSize], time.Time{})
		case opStep:
			var result []byte
			if result, err = steps.answer(record[minSize:]); err == nil && rank == 0 {
				err = end.Send(result, time.Time{})
			}
		case opSink:
		default:
			err = fmt.Errorf("order %d", record[0])
		}
		if err != nil {
			return err
		}
	}
}
