package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/hub"
)

// cacheFlag defines --download-dir as serve has it.
func cacheFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "download-dir", "",
		"where Hub repos are kept (default: the Hugging Face cache)")
	config.Paths(f, config.PathFolder, "download-dir")
}

// newPull downloads models.
func newPull() *cobra.Command {
	var opt hub.Options
	c := &cobra.Command{
		Use:   "pull MODEL...",
		Short: "Download models of the Hub and of buckets",
		Long: `pull downloads what an engine needs of Hub repos into the cache that Hugging Face's own tools use,
and prints the folder of each: serve finds it there by the same name. A download that was cut goes
on where it was. HF_TOKEN opens gated repos, HF_ENDPOINT names a mirror. Models in buckets are kept
beside them; credentials are found where Amazon's and Google's own tools find them, and
AWS_ENDPOINT_URL names another store.

  eagleray pull Qwen/Qwen3-0.6B
  eagleray pull unsloth/Qwen3-0.6B-GGUF:Q4_K_M
  eagleray pull s3://models/qwen3-0.6b`,
		Args: cli.Arguments(1, 1000),
		RunE: func(c *cobra.Command, args []string) error {
			for _, name := range args {
				if err := pull(c, name, opt); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&opt.Revision, "revision", "",
		"branch, tag or commit (default main)")
	cacheFlag(c.Flags(), &opt.DownloadDir)
	cli.ConfigFlag(c)
	return c
}

// pull downloads a model, showing how far it is on standard error.
func pull(c *cobra.Command, name string, opt hub.Options) error {
	shown := newProgress(os.Stderr)
	defer shown.end()
	opt.Warn = func(text string) { printWarnings([]string{text}) }
	opt.Progress = func(p hub.Progress) {
		shown.listen(status.Progress{Rank: -1, Phase: "download " + p.File, Done: p.AllDone,
			Total: p.AllTotal})
	}
	dir, err := hub.Resolve(c.Context(), name, opt)
	if err != nil {
		return err
	}
	shown.end()
	_, err = fmt.Fprintln(c.OutOrStdout(), dir)
	return err
}

// newList lists the models of the cache.
func newList() *cobra.Command {
	var opt hub.Options
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the models in the Hub's cache",
		Long: `list prints the models in the cache that pull, serve and Hugging Face's own tools download to,
what each takes on the disk, and how long ago it was downloaded. The Hub is not asked.`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			repos, err := hub.List(opt)
			if err != nil {
				return err
			}
			if asJSON {
				return printReposJSON(c, repos)
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSIZE\tMODIFIED\t")
			for _, r := range repos {
				fmt.Fprintf(w, "%s\t%s\t%s ago\t%s\n", r.Name, gigabytes(r.Bytes),
					ago(time.Since(r.Changed)), remarks(&r))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	cacheFlag(c.Flags(), &opt.DownloadDir)
	cli.ConfigFlag(c)
	return c
}

// repoJSON is an element of list --json.
type repoJSON struct {
	Name     string    `json:"name"`
	Dir      string    `json:"dir"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
	Missing  []string  `json:"missing,omitempty"`
	GGUF     []string  `json:"gguf,omitempty"`
}

func printReposJSON(c *cobra.Command, repos []hub.Repo) error {
	list := []repoJSON{}
	for _, r := range repos {
		list = append(list, repoJSON{r.Name, r.Dir, r.Bytes, r.Changed.UTC(), r.Missing, r.GGUF})
	}
	e := json.NewEncoder(c.OutOrStdout())
	e.SetIndent("", "    ")
	return e.Encode(list)
}

// remarks says what a model is, or lacks.
func remarks(r *hub.Repo) string {
	if len(r.Missing) > 0 {
		return "not whole, lacks " + strings.Join(r.Missing, ", ")
	}
	var names []string
	for _, stem := range r.GGUF {
		names = append(names, filepath.Base(stem))
	}
	return strings.Join(names, ", ")
}

func gigabytes(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// ago is a time in its largest unit.
func ago(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		size time.Duration
		name string
	}{{day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if n := int(d / u.size); n == 1 {
			return "1 " + u.name
		} else if n > 1 {
			return fmt.Sprintf("%d %ss", n, u.name)
		}
	}
	return "moments"
}

// newRemove removes models from the cache.
func newRemove() *cobra.Command {
	var opt hub.Options
	c := &cobra.Command{
		Use:   "rm MODEL...",
		Short: "Remove models from the Hub's cache",
		Long: `rm removes all that the cache has of Hub repos, and says how much room that makes. Only models of
the cache are removed, never another folder. A server that runs goes on with what it has loaded.

  eagleray rm Qwen/Qwen3-0.6B`,
		Args: cli.Arguments(1, 1000),
		RunE: func(c *cobra.Command, args []string) error {
			var all error
			for _, name := range args {
				freed, err := hub.Remove(c.Context(), name, opt)
				if err != nil {
					all = errors.Join(all, err)
					continue
				}
				fmt.Fprintf(c.OutOrStdout(), "removed %s: %s are free again\n", name,
					gigabytes(freed))
			}
			return all
		},
	}
	cacheFlag(c.Flags(), &opt.DownloadDir)
	cli.ConfigFlag(c)
	return c
}
