// Package attach answers requests of the program that started this one, over a socket that both
// hold an end of. There is no address, so no other program can ask, and no HTTP: a request is a
// frame (internal/ray/frame: a length of 4 bytes, big-endian, and a JSON object) that names a
// route, and is answered by the handler that answers the route over HTTP.
//
// The program sends
//
//	{"id": 1, "route": "/v1/completions", "body": {…}}   a request; "method" is POST without it
//	{"cancel": 1}                                        the answer is not waited for any more
//
// and gets
//
//	{"ready": {…}}                               first, when the engine answers requests
//	{"id": 1, "event": {…}}                      an event of a stream
//	{"id": 1, "status": 200, "body": {…}}        the answer; a stream ends with one without a body
//	{"failed": {"message": "…", "usage": true}}  the engine does not start or has ended; usage
//	                                             says that an argument is wrong. The last frame
//
// A request that was cancelled has an answer too, which says so or was on its way already. Requests
// are answered in any order. The end of the socket ends all of them.
package attach
