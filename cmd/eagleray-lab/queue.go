package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/eagleray-lab/internal/queuebench"
	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// queueFlags are what both benchmarks of the queue share.
func queueFlags(f *pflag.FlagSet, o *queuebench.Options, output *string) {
	f.StringVar(&o.Transport, "transport", "ring", "ring (shared memory) or link (TCP)")
	f.IntVar(&o.Readers, "readers", 2, "processes that receive what is sent; the first one replies")
	f.DurationVar(&o.Duration, "duration", 8*time.Second, "how long to measure")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the payloads")
	f.StringVar(output, "output-json", "", "file for the figures")
}

// newQueue measures the message queue between processes.
func newQueue() *cobra.Command {
	var o queuebench.Options
	var output string
	c := &cobra.Command{
		Use:   "queue",
		Short: "Measure the message queue between processes",
		Long: `queue sends records from this process to others and back: round trips beside those of a bare floor in
the same run (a futex for the ring, a socket with the same protection for the link), what waiting costs
when idle and at 50 records a second, and how fast 16 MiB payloads go.

  eagleray-lab queue --readers 2 --size 4096 --reply-size 1200
  eagleray-lab queue --transport link --readers 1 --output-json figures.json`,
		Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			r, err := queuebench.Run(o)
			if err != nil {
				return err
			}
			printQueue(os.Stdout, &r)
			return cli.WriteJSON(output, r)
		},
	}
	queueFlags(c.Flags(), &o, &output)
	c.Flags().IntVar(&o.Size, "size", 4096, "bytes of a record")
	c.Flags().IntVar(&o.ReplySize, "reply-size", 1200, "bytes of a reply")
	c.Flags().Float64Var(&o.Rate, "rate", 0, "round trips a second; 0 is one after the other")
	cli.ConfigFlag(c)
	return c
}

// newRPC measures real steps over the message queue.
func newRPC() *cobra.Command {
	var o queuebench.Options
	var output string
	var running int
	c := &cobra.Command{
		Use:   "rpc",
		Short: "Measure steps of decoding requests over the message queue",
		Long: `rpc sends a real plan of so many decoding requests to processes that compute nothing, and receives its
result: encoding, the way there, decoding, and back.

  eagleray-lab rpc --readers 2 --running 256`,
		Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if running < 1 {
				return &config.UsageError{Err: fmt.Errorf("--running %d is less than 1", running)}
			}
			r, err := queuebench.RunRPC(o, running)
			if err != nil {
				return err
			}
			printRPC(os.Stdout, &r)
			return cli.WriteJSON(output, r)
		},
	}
	queueFlags(c.Flags(), &o, &output)
	c.Flags().IntVar(&running, "running", 256, "decoding requests in each step")
	cli.ConfigFlag(c)
	return c
}

// newQueueReader is the verb of the processes that receive.
func newQueueReader() *cobra.Command {
	return &cobra.Command{
		Use:                "queue-reader",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return queuebench.Child(args)
		},
	}
}

func printQuantiles(w io.Writer, name string, q queuebench.Quantiles) {
	fmt.Fprintf(w, "%-44s %8.1f %8.1f %8.1f\n", name, q.P50, q.P99, q.P999)
}

func printQueue(w io.Writer, r *queuebench.Report) {
	fmt.Fprintf(w, "%s, %d readers, %d bytes there, %d back, %d round trips\n\n", r.Transport,
		r.Readers, r.Size, r.ReplySize, r.RoundTrips)
	fmt.Fprintf(w, "%-44s %8s %8s %8s\n", "microseconds", "p50", "p99", "p99.9")
	printQuantiles(w, "round trip", r.RoundTrip)
	printQuantiles(w, "bare floor of the same shape", r.Floor)
	printQuantiles(w, "round trip at 50 a second", r.PacedRoundTrip)
	printQuantiles(w, "bare floor at 50 a second", r.PacedFloor)
	fmt.Fprintf(w, "\n%-44s %8.2f\n", "round trip / floor (p50)", r.RatioP50)
	fmt.Fprintf(w, "%-44s %s\n", "CPU share while idle, writer first", shares(r.CPUShare.Idle))
	fmt.Fprintf(w, "%-44s %s\n", "CPU share at 50 a second", shares(r.CPUShare.Paced50Hz))
	fmt.Fprintf(w, "%-44s %8.2f\n", "16 MiB payloads (GB/s)", r.LargeGBPerS)
	if r.LargeFloorGBPerS > 0 {
		fmt.Fprintf(w, "%-44s %8.2f\n", "bare TLS, as many readers (GB/s)", r.LargeFloorGBPerS)
	}
}

func shares(s []float64) string {
	var b strings.Builder
	for _, v := range s {
		fmt.Fprintf(&b, " %7.2f%%", 100*v)
	}
	return b.String()
}

func printRPC(w io.Writer, r *queuebench.RPCReport) {
	fmt.Fprintf(w, "%s, %d readers, steps of %d requests: %d bytes there, %d back, %d steps\n\n",
		r.Transport, r.Readers, r.Running, r.Bytes.Plan, r.Bytes.Result, r.Steps)
	fmt.Fprintf(w, "%-44s %8s %8s %8s\n", "microseconds", "p50", "p99", "p99.9")
	printQuantiles(w, "step round trip", r.StepRoundTrip)
	printQuantiles(w, "bare floor of the same shape", r.Floor)
	fmt.Fprintf(w, "\n%-44s %8.2f\n", "step / floor (p50)", r.RatioP50)
	fmt.Fprintf(w, "%-44s %8.2f (%g allocations)\n", "encoding and decoding, of it (us)", r.CodecUS,
		r.CodecAllocs)
}
