#!/bin/sh
# Pushes the models, deploys the three applications and asks them, with nothing but curl. A node must be up: weir up
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

call -T ../prepare.onnx "$url/v1/models/digits-prepare/versions/1"
call -T ../../../functions/classify-digits/model/digits.onnx "$url/v1/models/digits/versions/1"
for model in *.onnx; do
    call -T "$model" "$url/v1/models/${model%.onnx}/versions/1"
done
for application in image traffic social; do
    call -T "$application.toml" "$url/v1/workflows/$application"
done
call --data-binary @image.json "$url/v2/models/image/infer"
call --data-binary @traffic-vehicle.json "$url/v2/models/traffic/infer"
call --data-binary @traffic-person.json "$url/v2/models/traffic/infer"
call --data-binary @social-foreign.json "$url/v2/models/social/infer"
call --data-binary @social-ours.json "$url/v2/models/social/infer"
call "$url/v2/models/stats"
