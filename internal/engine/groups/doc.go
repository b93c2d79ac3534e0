// Package groups starts the groups of ranks that engines compute on: locally, on other nodes or on
// Ray, and the next one in the place of one that has ended. A Launch says how the groups of an
// engine are started, its Supervisor owns the newest; a Ledger holds what ranks take of other
// hosts, a Cluster what the groups of all engines have in common.
package groups
