package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestDrainAnswersAll hands a socket from server to server, again and again, under clients that
// make a connection for each request and clients that keep theirs: everything that was accepted is
// answered.
func TestDrainAnswersAll(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 60
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	handler := newServer(t)
	// start is a server on the socket, and what ends it.
	start := func() (end func()) {
		f, err := socket.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		server := handler.HTTPServer(l.Addr().String())
		limited, served := handler.Limit(l), make(chan struct{})
		go func() {
			_ = server.Serve(limited)
			close(served)
		}()
		return func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			handler.Drain(ctx, limited)
			<-served
			handler.Drain(ctx, limited)
			if err := server.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	var asked, lost atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 12 {
		clients.Go(func() {
			transport := &http.Transport{DisableKeepAlives: i%3 > 0}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: time.Minute}
			for {
				select {
				case <-stop:
					return
				default:
				}
				// A POST that is not known to be safe is not sent again by the client itself.
				resp, err := client.Post("http://"+socket.Addr().String()+"/tokenize",
					"application/json", strings.NewReader(`{"prompt":"x"}`))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if asked.Add(1); err != nil && lost.Add(1) < 5 {
					t.Errorf("%v", err)
				}
			}
		})
	}
	end := start()
	var ending sync.WaitGroup
	for range rounds {
		next := start()
		for before := asked.Load(); asked.Load() < before+20; {
			time.Sleep(time.Millisecond)
		}
		ending.Go(end)
		end = next
	}
	ending.Wait()
	close(stop)
	clients.Wait()
	end()
	t.Logf("%d of %d requests lost over %d servers", lost.Load(), asked.Load(), rounds+1)
}
