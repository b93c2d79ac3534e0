package metrics

// Bucket boundaries of vllm/v1/metrics/buckets.py, but for what only we count.
var (
	requestLatencyBuckets = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
		120, 240, 480, 960, 1920, 7680}

	timeToFirstTokenBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
		0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

	interTokenLatencyBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
		0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}

	iterationTokensBuckets = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192,
		16384}

	// The median of published schemas takes 0.3 ms, the slowest a second.
	grammarCompileBuckets = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
		0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}

	requestNBuckets = []float64{1, 2, 5, 10, 20}
)

// oneTwoFive returns 1, 2, 5, 10, 20, 50, … up to limit, and at least 1.
func oneTwoFive(limit int) []float64 {
	buckets := []float64{1}
	for base := 1; ; base *= 10 {
		for _, step := range [...]int{2, 5, 10} {
			if step*base > limit {
				return buckets
			}
			buckets = append(buckets, float64(step*base))
		}
	}
}
