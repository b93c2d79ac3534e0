package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Served is the first model of a server's /v1/models.
type Served struct {
	// ID is the name requests use, Root where the model came from; MaxModelLen is 0 when the server
	// does not say.
	ID          string `json:"id"`
	Root        string `json:"root"`
	MaxModelLen int    `json:"max_model_len"`
}

// FirstModel asks a server which model it serves. base is its address without a path.
func FirstModel(ctx context.Context, client *http.Client, base string,
	header http.Header) (Served, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return Served{}, err
	}
	if header != nil {
		r.Header = header.Clone()
	}
	resp, err := client.Do(r)
	if err != nil {
		return Served{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Served{}, fmt.Errorf("%s: %w", r.URL, statusError(resp))
	}
	var list struct{ Data []Served }
	body := http.MaxBytesReader(nil, resp.Body, 1<<20)
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return Served{}, fmt.Errorf("%s: %w", r.URL, err)
	}
	if len(list.Data) == 0 {
		return Served{}, fmt.Errorf("%s lists no model", r.URL)
	}
	return list.Data[0], nil
}

// Wait calls ask until it succeeds, fails for good, or the time is over. A server that is not there
// yet, or answers 502, 503 or 504, may still become ready; any other answer is for good. waiting is
// told why there is still nothing, and may be nil.
func Wait(ctx context.Context, within time.Duration, ask func(context.Context) error,
	waiting func(took time.Duration, why error)) error {
	started := time.Now()
	pause := 50 * time.Millisecond
	for {
		err := ask(ctx)
		took := time.Since(started)
		if err == nil || !mayChange(err) || ctx.Err() != nil {
			return err
		}
		if took >= within {
			return fmt.Errorf("server not ready within %s: %w", within, err)
		}
		if waiting != nil {
			waiting(took, err)
		}
		if err := sleepUntil(ctx, time.Now().Add(min(pause, within-took))); err != nil {
			return err
		}
		pause = min(2*pause, time.Second)
	}
}

// mayChange tells whether a server that failed with err may only need time.
func mayChange(err error) bool {
	var status *StatusError
	if !errors.As(err, &status) {
		return !errors.Is(err, errNoOutput)
	}
	switch status.Code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
