#!/bin/sh
# Pushes the models, deploys both workflows and has digits read, with nothing but curl. A node must be up: weir up
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

call -T prepare.onnx "$url/v1/models/digits-prepare/versions/1"
call -T linear.onnx "$url/v1/models/digits-linear/versions/1"
call -T hidden.onnx "$url/v1/models/digits-hidden/versions/1"
call -T ../../functions/classify-digits/model/digits.onnx "$url/v1/models/digits/versions/1"
call -T ensemble.toml "$url/v1/workflows/digits-ensemble"
call -T cascade.toml "$url/v1/workflows/digits-cascade"
# The large model is not asked about the first of these.
call --data-binary @sure.json "$url/v2/models/digits-cascade/infer"
call --data-binary @unsure.json "$url/v2/models/digits-cascade/infer"
call --data-binary @unsure.json "$url/v2/models/digits-ensemble/infer"
call "$url/v2/models/stats"
