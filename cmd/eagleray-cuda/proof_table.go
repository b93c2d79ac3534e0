package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/eagleray-cuda/internal/stages"
)

// showTable prints the table of a file of results, beside peers' figures.
func (f *proofFlags) showTable(c *cobra.Command) error {
	results, err := readResults(f.show)
	if err != nil {
		return err
	}
	peers, err := stages.ReadPeers(f.peers)
	if err != nil {
		return err
	}
	f.driver = onMachine
	for i := range results {
		peers.Join(results[i].Rows)
		if results[i].Driver == onGPU {
			f.driver = onGPU
		}
	}
	fmt.Fprintln(c.OutOrStdout(), f.title())
	writeProof(c.OutOrStdout(), results)
	for _, r := range results {
		if !r.Pass {
			return errProof
		}
	}
	return nil
}

// readResults reads a file of --output-json, whose stages are in the order of their ends. Of
// several runs of a stage the last one counts.
func readResults(path string) (results []stages.Result, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, places := stages.Names(), map[string]int{}
	for d := json.NewDecoder(file); ; {
		var r stages.Result
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			slices.SortFunc(results, func(a, b stages.Result) int {
				return slices.Index(names, a.Stage) - slices.Index(names, b.Stage)
			})
			return results, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if at, again := places[r.Stage]; again {
			results[at] = r
			continue
		}
		places[r.Stage] = len(results)
		results = append(results, r)
	}
}

// writeProof prints a line for each stage, and one for each row that failed or is listed.
func writeProof(to io.Writer, results []stages.Result) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tRESULT\tOURS\tFLOOR\tPEER\tRATIO\tUNIT\tNOTE")
	for i := range results {
		r := &results[i]
		note := r.Summary
		if r.Error != "" {
			note = r.Error
		}
		fmt.Fprintf(w, "%s\t%s\t\t\t\t\t\t%s\n", r.Stage, verdict(!r.Pass), note)
		for _, row := range r.Rows {
			if !row.Failed && !row.Listed {
				continue
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Name, rowVerdict(&row),
				number(row.Ours), number(row.Floor), number(row.Peer), ratio(&row), row.Unit,
				row.Note)
		}
	}
	w.Flush()
	fmt.Fprintln(to, "ratio: ours by the peer's figure, or by the floor where there is no peer")
}

func verdict(failed bool) string {
	if failed {
		return "FAIL"
	}
	return "pass"
}

// rowVerdict is "-" of a row that is only told.
func rowVerdict(r *stages.Row) string {
	if !r.Failed && r.Ours == nil {
		return "-"
	}
	return verdict(r.Failed)
}

// number is a figure, "-" for none.
func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'g', 4, 64)
}

// ratio is ours by the peer's, else by the floor.
func ratio(r *stages.Row) string {
	by := r.Floor
	if r.Peer != nil {
		by = r.Peer
	}
	if r.Ours == nil || by == nil || *by == 0 {
		return "-"
	}
	return strconv.FormatFloat(*r.Ours / *by, 'f', 2, 64)
}
