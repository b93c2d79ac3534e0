package link

import (
	"io"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkRoundTrip is 4 KB there and 1.2 KB back, over the link and over the connection alone,
// with TLS and without. Slices of both take turns, so that a busy machine disturbs them alike;
// medians are reported.
func BenchmarkRoundTrip(b *testing.B) {
	for _, secure := range []bool{false, true} {
		b.Run(kind(secure), func(b *testing.B) {
			bare, endBare := bareTrips(b, secure)
			linked, endLinked := linkTrips(b, secure)
			defer endBare()
			defer endLinked()
			const slice = 200
			var times [2][]float64
			b.ReportAllocs()
			for b.Loop() {
				for i, trip := range []func(){bare, linked} {
					begin := time.Now()
					for range slice {
						trip()
					}
					times[i] = append(times[i], float64(time.Since(begin).Nanoseconds())/slice)
				}
			}
			slices.Sort(times[0])
			slices.Sort(times[1])
			x, y := times[0][len(times[0])/2], times[1][len(times[1])/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(x, "bare-ns/trip")
			b.ReportMetric(y, "link-ns/trip")
			b.ReportMetric(y/x, "link/bare")
			b.ReportMetric(times[1][0]/times[0][0], "best/best")
		})
	}
}

func kind(secure bool) string {
	if secure {
		return "tls"
	}
	return "tcp"
}

func bareTrips(b *testing.B, secure bool) (trip, end func()) {
	d, w := tcpPair(b, secure)
	go func() {
		in, out := make([]byte, 4096), make([]byte, 1200)
		for {
			if _, err := io.ReadFull(w, in); err != nil {
				return
			}
			w.Write(out)
		}
	}()
	out, in := make([]byte, 4096), make([]byte, 1200)
	return func() {
			d.Write(out)
			if _, err := io.ReadFull(d, in); err != nil {
				b.Fatal(err)
			}
		}, func() {
			d.Close()
			w.Close()
		}
}

func linkTrips(b *testing.B, secure bool) (trip, end func()) {
	d, w := tcpPair(b, secure)
	driver, worker := Accept(d, testSession, Options{}), Connect(w, testSession, nil, Options{})
	go func() {
		out := make([]byte, 1200)
		for {
			if _, err := worker.Recv(time.Time{}); err != nil {
				return
			}
			worker.Send(out, time.Time{})
		}
	}()
	out := make([]byte, 4096)
	return func() {
			driver.Send(out, in(time.Minute))
			if _, err := driver.Recv(in(time.Minute)); err != nil {
				b.Fatal(err)
			}
		}, func() {
			driver.Close("")
			worker.Close("")
		}
}

// BenchmarkLarge sends records of 16 MiB one way, over the link and over the connection alone.
func BenchmarkLarge(b *testing.B) {
	record := make([]byte, 16<<20)
	for _, secure := range []bool{false, true} {
		b.Run(kind(secure)+"/bare", func(b *testing.B) {
			d, w := tcpPair(b, secure)
			defer d.Close()
			into := make([]byte, len(record))
			large(b, w, len(record), func() error {
				_, err := d.Write(record)
				return err
			}, func() error {
				_, err := io.ReadFull(w, into)
				return err
			})
		})
		b.Run(kind(secure)+"/link", func(b *testing.B) {
			d, w := tcpPair(b, secure)
			driver, worker := Accept(d, testSession, Options{}), Connect(w, testSession, nil,
				Options{})
			defer driver.Close("")
			large(b, closer(func() { worker.Close("") }), len(record), func() error {
				return driver.Send(record, time.Time{})
			}, func() error {
				_, err := worker.Recv(time.Time{})
				return err
			})
		})
	}
}

// cpu is what this process has used, which other processes disturb less than they do the clock.
func cpu() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

func large(b *testing.B, receiver io.Closer, size int, send, recv func() error) {
	got := make(chan error, 1)
	go func() {
		for {
			err := recv()
			got <- err
			if err != nil {
				return
			}
		}
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	send() // buffers grow to their size
	<-got
	b.ResetTimer()
	begin := cpu()
	for b.Loop() {
		if err := send(); err != nil {
			b.Fatal(err)
		}
		if err := <-got; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu()-begin).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	receiver.Close()
	<-got
}
