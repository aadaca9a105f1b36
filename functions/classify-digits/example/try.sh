#!/bin/sh
# Uploads the model, deploys the function and classifies a digit, with curl alone. Needs a running
# node: ../../bin/weir up
#
# - WEIR_URL: address of the node, if it is not http://127.0.0.1:9347
# - WEIR_TOKEN: token to send, if the node requires one
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
