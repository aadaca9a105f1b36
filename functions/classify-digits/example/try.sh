#!/bin/sh
# Pushes the model, deploys the function and has a digit read, with nothing but curl. A node must be up: ../../bin/weir up
#
#   WEIR_URL     where the node is, if not at http://127.0.0.1:9347
#   WEIR_TOKEN   the token to send, where the node asks for one
set -eu
cd "$(dirname "$0")"
url=${WEIR_URL:-http://127.0.0.1:9347}

call() {
    echo "\$ curl $*" >&2
    curl -sS --fail-with-body ${WEIR_TOKEN:+-H "weir-token: $WEIR_TOKEN"} "$@"
    echo
}

call -T digits.onnx "$url/v1/models/digits/versions/1"
call -T classify-digits.wasm "$url/v1/functions/classify-digits?models=digits"
call --data-binary @7.png "$url/fn/classify-digits/"
