package weirhttp

import "net/http"

//go:wasmexport wasi:http/incoming-handler@0.2.12#handle
func handle(request, out int32) {
	body, answer := &body{request: request}, &answer{out: out, header: http.Header{}}
	if r, err := received(body); err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
	} else if served == nil {
		panic("the function serves nothing: call weirhttp.Serve in an init function")
	} else {
		served.ServeHTTP(answer, r)
	}
	answer.finish()
	body.giveBack()
}
