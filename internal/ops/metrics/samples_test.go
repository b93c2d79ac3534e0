package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSamples compares the samples of an engine with what is exposed to Prometheus.
func TestSamples(t *testing.T) {
	m := exercised()
	want := map[string]float64{}
	for line := range strings.Lines(scrape(t, m)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "eagleray:") && !strings.HasPrefix(line, "http_") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		name, labels, _ := strings.Cut(strings.Replace(line[:at], ":", "_", 1), "{")
		if strings.HasPrefix(name, "http_") {
			name, labels = "eagleray_"+name, strings.TrimSuffix(labels,
				"}")+`,engine="0",model_name="tiny"}`
		}
		want[name+"{"+sorted(labels)] = value
	}
	got := map[string]float64{}
	for _, s := range m.Samples(0) {
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
			labels = append(labels, fmt.Sprintf("%s=%q", name, s.Labels[name]))
		}
		got[s.Name+"{"+strings.Join(labels, ",")+"}"] = s.Value
		if s.Help == "" {
			t.Errorf("%s has no help", s.Name)
		}
	}
	if !maps.Equal(got, want) {
		for name := range want {
			if v, ok := got[name]; !ok || v != want[name] {
				t.Errorf("%s is %v, %v; want %v", name, v, ok, want[name])
			}
		}
		t.Errorf("%d samples, want %d", len(got), len(want))
	}
}

func sorted(labels string) string {
	all := strings.Split(strings.TrimSuffix(labels, "}"), ",")
	slices.Sort(all)
	return strings.Join(all, ",") + "}"
}

// TestSamplesOfEngines: each engine has its own, the first those of the server, too.
func TestSamplesOfEngines(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 10, Engines: 2})
	m.HTTP("/v1/models", "GET", 200, time.Second)
	for i := range 2 {
		server := 0
		for _, s := range m.Samples(i) {
			if s.Labels["engine"] != strconv.Itoa(i) {
				t.Errorf("engine %d has %s of %s", i, s.Name, s.Labels["engine"])
			}
			if strings.HasPrefix(s.Name, "eagleray_http_") {
				server++
			}
		}
		if (server > 0) != (i == 0) {
			t.Errorf("engine %d has %d samples of the server", i, server)
		}
	}
}
