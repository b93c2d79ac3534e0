// Package admin has the routes that change a running server: those of a trainer, and those that
// scale the engines.
package admin
