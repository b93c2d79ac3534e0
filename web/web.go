// Package web holds the page that a server shows to browsers: HTML, CSS and ES modules, embedded as
// they are. There is no build step, so what is served is what is read here.
package web

import "embed"

// Files are the page's files: index.html, report.html, css/, js/ and vendor/.
//
//go:embed index.html report.html icon.svg css js vendor
var Files embed.FS
