// Package batch answers files of requests, one a line: for run-batch, and for OpenAI's Files and
// Batch API.
//
// What makes a batch durable is its output. A line there names the row of the input that it answers
// (see rowID), and is written once, in one piece. A server that goes on after a crash reads the
// output first, and runs the rows that are not in it.
package batch
