package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever the seed and the burstiness, times rise and the last request is sent at n ÷ rate.
func TestArrivalRate(t *testing.T) {
	for _, burstiness := range []float64{0.3, 1, 4, math.Inf(1)} {
		for seed := range uint64(5) {
			const n, rate = 500, 20.0
			times, err := Arrival{Rate: rate, Burstiness: burstiness, Seed: seed}.Times(n)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSorted(times) || times[0] < 0 {
				t.Errorf("burstiness %g: times do not rise", burstiness)
			}
			if got, want := times[n-1].Seconds(), n/rate; math.Abs(got-want) > 1e-6 {
				t.Errorf("burstiness %g: the last request is sent at %g s, want %g", burstiness,
					got, want)
			}
		}
	}
}

// The gaps of a gamma distribution of shape k have a squared coefficient of variation of 1/k.
func TestArrivalBurstiness(t *testing.T) {
	for _, burstiness := range []float64{0.25, 1, 4, 25} {
		const n = 40000
		times, err := Arrival{Rate: 100, Burstiness: burstiness, Seed: 7}.Times(n)
		if err != nil {
			t.Fatal(err)
		}
		gaps := make([]float64, n)
		for i := range gaps {
			before := time.Duration(0)
			if i > 0 {
				before = times[i-1]
			}
			gaps[i] = (times[i] - before).Seconds()
		}
		cv2 := math.Pow(deviation(gaps)/mean(gaps), 2)
		if math.Abs(cv2*burstiness-1) > 0.1 {
			t.Errorf("burstiness %g: squared variation %.3f, want %.3f", burstiness, cv2,
				1/burstiness)
		}
	}
	even, err := Arrival{Rate: 10, Burstiness: math.Inf(1)}.Times(3)
	for i, at := range even {
		if at.Round(time.Microsecond) != time.Duration(i+1)*100*time.Millisecond {
			err = fmt.Errorf("request %d is sent at %v", i, at)
		}
	}
	if err != nil {
		t.Errorf("infinite burstiness: %v", err)
	}
}

func TestArrivalAllAtOnce(t *testing.T) {
	times, err := Arrival{Rate: math.Inf(1), Burstiness: 1}.Times(4)
	if want := make([]time.Duration, 4); err != nil || !slices.Equal(times, want) {
		t.Errorf("%v, error %v", times, err)
	}
}

// A ramp begins at its first rate and ends at its last one; in between a linear one has more
// requests than an exponential one had by then.
func TestArrivalRamp(t *testing.T) {
	const n = 20000
	ends := map[string]float64{}
	for _, strategy := range []string{"linear", "exponential"} {
		a := Arrival{Rate: math.Inf(1), Burstiness: 1, RampUp: strategy, RampStart: 10,
			RampEnd: 1000, Seed: 3}
		times, err := a.Times(n)
		if err != nil {
			t.Fatal(err)
		}
		const window = 200
		first := window / times[window-1].Seconds()
		last := window / (times[n-1] - times[n-1-window]).Seconds()
		if first < 8 || first > 15 || last < 800 || last > 1200 {
			t.Errorf("%s: rate goes from %.1f to %.1f, want 10 to 1000", strategy, first, last)
		}
		ends[strategy] = times[n-1].Seconds()
	}
	// The expected lengths are the sums of 1/rate over the requests.
	linear, exponential := n/990.0*math.Log(100), n*(1/10.0-1/1000.0)/math.Log(100)
	if math.Abs(ends["linear"]/linear-1) > 0.05 ||
		math.Abs(ends["exponential"]/exponential-1) > 0.05 {
		t.Errorf("ramps take %v s, want about %.0f and %.0f", ends, linear, exponential)
	}
}

func TestArrivalMistakes(t *testing.T) {
	for want, a := range map[string]Arrival{
		"burstiness 0":            {Rate: 1},
		"burstiness NaN":          {Rate: 1, Burstiness: math.NaN()},
		"request rate 0":          {Burstiness: 1},
		"request rate -1":         {Rate: -1, Burstiness: 1},
		`"steep" is not linear`:   {Rate: math.Inf(1), Burstiness: 1, RampUp: "steep"},
		"take more than 8760h":    {Rate: 1e-9, Burstiness: 1},
		"request rate 0 is not p": {Rate: math.Inf(1), Burstiness: 1, RampUp: "linear", RampEnd: 5},
	} {
		if _, err := a.Times(3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", a, err, want)
		}
	}
}
