package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// TestBatchKilled kills a server again and again while it answers a batch, which the next one goes
// on with: at the end each row has one line, and the answer that it has without a kill. A server
// beside it is told that the folder is in use.
func TestBatchKilled(t *testing.T) {
	t.Parallel()
	// A batch may be over before its server is killed.
	for rows := 60; !batchKilled(t, rows); rows *= 2 {
	}
}

// batchKilled returns false when the batch was over too early.
func batchKilled(t *testing.T, rows int) bool {
	dir := t.TempDir()
	// Few at a time: some are done before others have begun.
	args := []string{"--max-num-seqs", "4", "--store-dir", dir}
	id := ""
	var kept []byte
	for round := range 4 {
		p, url := startServer(t, args...)
		c := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"))
		if id == "" {
			id = createBatch(t, c, batchRows(rows, 24))
			code, _, stderr := execute(t, "", append([]string{"serve", "--port", "0"}, args...)...)
			if code != 1 || !strings.Contains(stderr, "--store-dir: store "+filepath.Join(dir,
				"state.db")+
				": another process uses it") {
				t.Errorf("a second server: exit code %d, %s", code, stderr)
			}
		}
		spool := filepath.Join(dir, "batches", id+".out")
		if round < 3 {
			over := false
			eventually(t, "answers", func() bool {
				b, err := c.Batches.Get(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				over = b.Status == openai.BatchStatusCompleted
				return over || int(b.RequestCounts.Completed) >= bytes.Count(kept, []byte("\n"))+8
			})
			if round == 1 {
				// A server that is asked to end does not wait for the batch.
				p.stops()
			} else {
				p.signal(syscall.SIGKILL)
				p.exit()
			}
			b, err := os.ReadFile(spool)
			if over || errors.Is(err, fs.ErrNotExist) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(b, kept) {
				t.Fatal("an answer that was there has changed")
			}
			kept = b[:bytes.LastIndexByte(b, '\n')+1]
			continue
		}
		text := finishedBatch(t, c, id, int64(rows))
		if !bytes.HasPrefix(text, kept) || bytes.Count(kept, []byte("\n")) == rows {
			t.Error("the answers of the servers before are not those of the batch")
		}
		got := batchTexts(t, text)
		again := batchTexts(t, finishedBatch(t, c, createBatch(t, c, batchRows(rows, 24)),
			int64(rows)))
		for row, want := range again {
			if got[row] != want {
				t.Errorf("%s: %q, and without a kill %q", row, got[row], want)
			}
		}
		p.stops()
	}
	return true
}

func createBatch(t *testing.T, c openai.Client, rows []byte) string {
	t.Helper()
	f, err := c.Files.New(t.Context(), openai.FileNewParams{Purpose: "batch",
		File: openai.File(bytes.NewReader(rows), "in.jsonl", "application/jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Batches.New(t.Context(), openai.BatchNewParams{InputFileID: f.ID,
		Endpoint: "/v1/completions", CompletionWindow: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	return b.ID
}

// finishedBatch is the output of a batch once it is over.
func finishedBatch(t *testing.T, c openai.Client, id string, rows int64) []byte {
	t.Helper()
	var b *openai.Batch
	eventually(t, "the end of the batch", func() bool {
		var err error
		if b, err = c.Batches.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return b.Status == "completed"
	})
	if n := b.RequestCounts; n.Total != rows || n.Completed != rows || n.Failed != 0 ||
		b.ErrorFileID != "" {
		t.Errorf("%s", b.RawJSON())
	}
	r, err := c.Files.Content(t.Context(), b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFilesInPython has the Python clients of OpenAI and Anthropic use files and batches. It is
// skipped unless EAGLERAY_CLIENTS names a Python with requirements/clients.txt.
func TestFilesInPython(t *testing.T) {
	python := os.Getenv("EAGLERAY_CLIENTS")
	if python == "" {
		t.Skip("EAGLERAY_CLIENTS names no Python with requirements/clients.txt")
	}
	_, url := startServer(t, "--store-dir", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, script := range []string{"files.py", "messages.py"} {
		out, err := exec.CommandContext(ctx, python, "testdata/clients/"+script,
			url).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "ok\n") {
			t.Errorf("%s: %v:\n%s", script, err, out)
		}
	}
}
