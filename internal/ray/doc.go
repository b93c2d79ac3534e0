// Package ray places and watches processes on a Ray cluster. It speaks to Ray through a bridge: a
// Python process of our own beside the engine (python/bridge.py), which uses nothing but Ray's
// public Python API, and through the dashboard's REST API. The bridge is one Ray job: when it
// ends, however it ends, Ray ends its actors and removes its placement groups, and nothing of the
// engine is left on the cluster. No token and no tensor passes through here.
//
// Every method of Client may be called from several goroutines at once; a long WaitGroup delays
// nothing else.
package ray
