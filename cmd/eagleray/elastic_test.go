package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// posted is what a server answers to a request with a body, which may be empty.
func posted(t *testing.T, url, body string) (code int, answer string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// TestScaleNodes adds an engine on a node that comes later, changes the layout of all, and removes
// the engine again: answers have the bits of one process each time, and a stream goes on through
// all of it.
func TestScaleNodes(t *testing.T) {
	t.Parallel()
	want := onePiece(t)
	c := newCluster(t, "-tp", "2", "--data-parallel-size", "2", "--nnodes", "2",
		"--enable-elastic-ep")
	other := c.node("1").start()
	zero, url := ready(t, c.zero())
	other.says("serving")
	scale := func(query string, code int, says string) {
		t.Helper()
		got, answer := posted(t, url+"/scale_elastic?"+query, "")
		if got != code || !strings.Contains(answer, says) {
			t.Errorf("%s: %d %s\n%s", query, got, answer, zero.err.String())
		}
		for range 3 { // by turns
			code, answer := posted(t, url+"/v1/completions", drawn)
			if code != 200 || choices(t, answer) != want {
				t.Errorf("after %s: %d %s, one process\n%s", query, code, answer, want)
			}
		}
	}
	const tokens = 1000
	events := longStream(t, url, tokens)
	scale("dp=3", 400, "engine 2 is for node 2, which has not come (serve --headless "+
		"--node-rank 2 --nnodes 3 --data-parallel-size 3, and the other flags as on node 0): "+
		"2 engines have nodes")
	c.flags = append(c.flags, "--data-parallel-size", "3", "--nnodes", "3")
	spare := c.node("2").start()
	spare.says("joined node 0")
	scale("dp=3", 200, `"data_parallel_size":3`)
	if ranks := workers(t, spare.cmd.Process.Pid); len(ranks) != 2 {
		t.Errorf("the node that came has %v", ranks)
	}
	scale("tp=1", 200, `"tensor_parallel_size":1`)
	if ranks := workers(t, spare.cmd.Process.Pid); len(ranks) != 1 {
		t.Errorf("the node that came has %v", ranks)
	}
	scale("tp=3", 400, "--tensor-parallel-size 3")
	scale("dp=2", 200, `"data_parallel_size":2`)
	if ranks := workers(t, spare.cmd.Process.Pid); len(ranks) != 0 {
		t.Errorf("the node that came has %v", ranks)
	}
	rest, err := io.ReadAll(events)
	if err != nil || !strings.Contains(string(rest), `"completion_tokens":1000`) {
		t.Errorf("the stream ends with %q, %v", rest[max(0, len(rest)-300):], err)
	}
	zero.stops()
	for _, p := range []*program{other, spare} {
		p.ends(0, "ended: node 0 has ended")
	}
}
