// Package call is what is known of a request beside its body: whose it is, what its answer is made
// of, when its time is over, and what observes it.
package call
