package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/stages"
	"github.com/eagleray/eagleray/internal/sys/executable"
)

// errProof says that a stage failed; the table says which.
var errProof = errors.New("proof: a stage failed")

// message is a line that the process of a stage writes: a row as it comes, or the result.
type message struct {
	Row    *stages.Row    `json:"row,omitempty"`
	Result *stages.Result `json:"result,omitempty"`
}

// runHere runs a stage in this process, and writes messages.
func (f *proofFlags) runHere(c *cobra.Command) error {
	e := json.NewEncoder(c.OutOrStdout())
	if err := f.open(); err != nil {
		return err
	}
	var err error
	if f.options.Peers, err = stages.ReadPeers(f.peers); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.limit(f.here))
	defer cancel()
	var failed error
	result := stages.Run(ctx, f.here, f.options, func(row stages.Row) {
		failed = errors.Join(failed, e.Encode(message{Row: &row}))
	})
	return errors.Join(failed, e.Encode(message{Result: &result}))
}

// supervise runs stages, each in a process of its own: an error of a kernel ends all that a process
// can do with its device. Those that measure nothing run beside each other, as far as there are
// processors.
func (f *proofFlags) supervise(c *cobra.Command) error {
	if f.driver == onGPU {
		if _, err := probe(f.library); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen := f.chosen()
	if len(chosen) == 0 {
		return errors.New("proof: no stage was chosen")
	}
	var results []stages.Result
	for len(results) < len(chosen) && ctx.Err() == nil {
		some := chosen[len(results):]
		n := 1
		for n < len(some) && !stages.Alone(some[0]) && !stages.Alone(some[n]) {
			n++
		}
		list, err := f.together(ctx, c, some[:n])
		if err != nil {
			return err
		}
		results = append(results, list...)
	}
	out := c.OutOrStdout()
	fmt.Fprintln(out, f.title())
	writeProof(out, results)
	for _, r := range results {
		if !r.Pass {
			return errProof
		}
	}
	return ctx.Err()
}

// together runs some stages beside each other, and keeps each result as it comes.
func (f *proofFlags) together(ctx context.Context, c *cobra.Command, names []string) (
	[]stages.Result, error) {
	results := make([]stages.Result, len(names))
	var all errgroup.Group
	all.SetLimit(runtime.NumCPU())
	var saving sync.Mutex
	for i, name := range names {
		all.Go(func() error {
			fmt.Fprintf(c.ErrOrStderr(), "proof: %s …\n", name)
			results[i] = f.stageInProcess(ctx, c, name)
			saving.Lock()
			defer saving.Unlock()
			return f.save(&results[i])
		})
	}
	return results, all.Wait()
}

// save appends a result to the file of --output-json.
func (f *proofFlags) save(r *stages.Result) error {
	if f.output == "" {
		return nil
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("--output-json: %w", err)
	}
	file, err := os.OpenFile(f.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("--output-json: %w", err)
	}
	_, err = file.Write(append(raw, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("--output-json: %w", err)
	}
	return nil
}

// grace is how long a stage that is late has to say so before its process is ended.
const grace = 15 * time.Second

// stageInProcess runs a stage in a process, and has what it reported even if it does not live to
// its end.
func (f *proofFlags) stageInProcess(ctx context.Context, c *cobra.Command,
	name string) stages.Result {
	result := stages.Result{Stage: name, Driver: f.driver, Rows: []stages.Row{}}
	start := time.Now()
	limit := f.limit(name) + grace
	late, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done, err := f.start(late, c, name, &result)
	if done {
		return result
	}
	result.Pass, result.Seconds = false, time.Since(start).Seconds()
	result.Error = fmt.Sprintf("the stage's process ended without a result: %v", err)
	if late.Err() != nil && ctx.Err() == nil {
		result.Error = fmt.Sprintf("late: ended after %v", limit)
	}
	return result
}

// start starts the process of a stage and reads its messages. done says that there was a result.
func (f *proofFlags) start(ctx context.Context, c *cobra.Command, name string,
	result *stages.Result) (done bool, err error) {
	p := exec.CommandContext(ctx, executable.Own, f.arguments(c, name)...)
	p.WaitDelay = time.Second
	var errors bytes.Buffer
	p.Stderr = io.MultiWriter(c.ErrOrStderr(), &errors)
	output, err := p.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := p.Start(); err != nil {
		return false, err
	}
	rows := []stages.Row{}
	for d := json.NewDecoder(output); ; {
		var m message
		if err := d.Decode(&m); err != nil {
			break
		}
		if m.Row != nil {
			rows = append(rows, *m.Row)
		}
		if m.Result != nil {
			*result, done = *m.Result, true
		}
	}
	err = p.Wait()
	result.Rows = rows
	if errors.Len() > 0 && err != nil {
		err = fmt.Errorf("%w: %s", err, lastLine(errors.Bytes()))
	}
	return done, err
}

// lastLine is the last line of a program's words.
func lastLine(b []byte) []byte {
	b = bytes.TrimRight(b, "\n")
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

// arguments are those of the process of a stage: the flags that were given to this one.
func (f *proofFlags) arguments(c *cobra.Command, name string) []string {
	args := []string{"proof", "--run-here", name}
	ours := map[string]bool{"stage": true, "skip": true, "output-json": true}
	c.Flags().Visit(func(x *pflag.Flag) {
		if ours[x.Name] {
			return
		}
		value := x.Value.String()
		if list, ok := x.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				args = append(args, "--"+x.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+x.Name+"="+value)
	})
	return args
}
