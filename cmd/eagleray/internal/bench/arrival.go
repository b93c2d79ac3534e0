package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Arrival says when requests are sent.
type Arrival struct {
	// Rate is requests per second; +Inf sends all at once.
	Rate float64
	// Burstiness is the shape of the gamma distribution of the gaps: 1 is Poisson, less is
	// burstier, +Inf is even.
	Burstiness float64
	// RampUp is "", linear or exponential: the rate then goes from RampStart to RampEnd over the
	// requests.
	RampUp             string
	RampStart, RampEnd float64
	Seed               uint64
}

// Times returns when each of n requests is sent, counted from the start, as vLLM's get_request
// does: gaps are drawn, and without a ramp stretched so that the last request is sent at n/rate.
func (a Arrival) Times(n int) ([]time.Duration, error) {
	if !(a.Burstiness > 0) {
		return nil, fmt.Errorf("burstiness %g is not positive", a.Burstiness)
	}
	times := make([]time.Duration, n)
	if a.RampUp == "" && math.IsInf(a.Rate, 1) {
		return times, nil
	}
	rng := rand.New(rand.NewPCG(a.Seed, 0x617272697661))
	at := 0.0
	seconds := make([]float64, n)
	for i := range seconds {
		rate, err := a.rate(i, n)
		if err != nil {
			return nil, err
		}
		gap := 1 / rate
		if !math.IsInf(a.Burstiness, 1) {
			gap = gamma(rng, a.Burstiness) / (rate * a.Burstiness)
		}
		at += gap
		seconds[i] = at
	}
	if at > longestRun.Seconds() {
		return nil, fmt.Errorf("at these request rates %d requests take more than %s", n,
			longestRun)
	}
	stretch := 1.0
	if a.RampUp == "" && at > 0 {
		stretch = float64(n) / a.Rate / at
	}
	for i, s := range seconds {
		times[i] = time.Duration(s * stretch * float64(time.Second))
	}
	return times, nil
}

// longestRun bounds how far ahead a request may be sent.
const longestRun = 365 * 24 * time.Hour

func (a Arrival) rate(i, n int) (float64, error) {
	rate := a.Rate
	progress := float64(i) / float64(max(n-1, 1))
	switch a.RampUp {
	case "":
	case "linear":
		rate = a.RampStart + (a.RampEnd-a.RampStart)*progress
	case "exponential":
		rate = a.RampStart * math.Pow(a.RampEnd/a.RampStart, progress)
	default:
		return 0, fmt.Errorf("ramp-up strategy %q is not linear or exponential", a.RampUp)
	}
	if !(rate > 0) || math.IsInf(rate, 1) {
		return 0, fmt.Errorf("request rate %g is not positive", rate)
	}
	return rate, nil
}

// gamma draws from the gamma distribution of the given shape and scale 1 (Marsaglia and Tsang,
// 2000).
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v *= v * v
		if math.Log(rng.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
