package model_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// decodeBatch is one step of rows sequences, each at position context with everything before in the
// cache.
func decodeBatch(rows, context int) *compute.Batch {
	b := new(compute.Batch)
	perSeq := context/blockSize + 1
	for s := range rows {
		var table []int32
		for i := range perSeq {
			table = append(table, int32(s*perSeq+i))
		}
		b.Tokens = append(b.Tokens, int32(s+3))
		b.Slots = append(b.Slots, table[context/blockSize]*blockSize+int32(context%blockSize))
		b.Position = append(b.Position, int32(context))
		b.Seq = append(b.Seq, int32(s))
		b.States = append(b.States, int32(s))
		b.Tables = append(b.Tables, table)
	}
	return b
}

// decodeStep returns a function that computes one step and the logits of all its rows.
func decodeStep(t testing.TB, name string, threads, rows, context int) func() {
	f := shipped(name)
	if _, err := os.Stat(variant(name).dir); err == nil {
		f = variant(name)
	}
	s := loadShard(t, f, cpu.Options{Threads: threads}, layers.Group{Size: 1})
	b := decodeBatch(rows, context)
	chosen := make([]int32, rows)
	for i := range chosen {
		chosen[i] = int32(i)
	}
	return func() {
		if err := forward(s.model, b, s.cache); err != nil {
			t.Fatal(err)
		}
		if _, err := s.model.Logits(chosen); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDecodeAllocatesNothing wants a steady decoding step to leave the Go heap alone.
func TestDecodeAllocatesNothing(t *testing.T) {
	for _, name := range []string{"go-std-tiny", "qwen3moe-tiny", "opt-tiny",
		"qwen3next-tiny", "granite4-hybrid", "nemotron-h"} {
		for _, threads := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d", name, threads), func(t *testing.T) {
				step := decodeStep(t, name, threads, 8, 64)
				step()
				steps := 50
				if testing.Short() {
					steps = 15
				}
				if n := allocations(steps, step); n != 0 {
					t.Errorf("%d allocations in %d steps", n, steps)
				}
			})
		}
	}
}

// allocations is testing.AllocsPerRun without its GOMAXPROCS of 1, under which a pool's threads
// only wait for each other. It counts all goroutines' allocations, so the least of three tries is
// taken.
func allocations(runs int, f func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}

// BenchmarkDecode is the time of one token of one sequence.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"go-std-tiny", "qwen3moe-tiny"} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", name, threads), func(b *testing.B) {
				step := decodeStep(b, name, threads, 1, 64)
				step()
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
			})
		}
	}
}

// BenchmarkPrefill is the time of a step of one long prompt.
func BenchmarkPrefill(b *testing.B) {
	const rows = 256
	for _, name := range []string{"go-std-tiny", "qwen3moe-tiny", "opt-tiny",
		"qwen3next-tiny"} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", name, threads), func(b *testing.B) {
				opt := cpu.Options{Threads: threads}
				s := loadShard(b, shipped(name), opt, layers.Group{Size: 1})
				batch := new(compute.Batch)
				batch.Tables = [][]int32{make([]int32, rows/blockSize)}
				for i := range batch.Tables[0] {
					batch.Tables[0][i] = int32(i)
				}
				for i := range int32(rows) {
					batch.Tokens = append(batch.Tokens, i)
					batch.Slots = append(batch.Slots, i)
					batch.Position = append(batch.Position, i)
					batch.Seq = append(batch.Seq, 0)
				}
				for b.Loop() {
					if err := forward(s.model, batch, s.cache); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
