#!/usr/bin/env bash
# What an operator does with grpcurl and nothing else: look around, read and write, ask for status.
# usage: GRPCURL=path grpcurl_test.sh ROUTER SERVER
set -euo pipefail
router=$1
server=$2
grpcurl=${GRPCURL:-grpcurl}

fail() {
    echo "grpcurl_test: $*" >&2
    exit 1
}

# The answer of a call, as JSON.
call() {
    local address=$1 method=$2 request=$3
    "${grpcurl}" -plaintext -max-time 30 -d "${request}" "${address}" "${method}"
}

# expect WHAT JSON EXPRESSION: the Python expression over `a`, the answer, must hold.
expect() {
    python3 -c 'import json, sys
a = json.loads(sys.argv[1] or "{}")
sys.exit(0 if eval(sys.argv[2]) else 1)' "$2" "$3" || fail "$1: $3 does not hold for: $2"
}

encode() {
    printf '%s' "$1" | base64 -w0
}

lists() {
    local address=$1
    shift
    local services
    services=$("${grpcurl}" -plaintext -max-time 30 "${address}" list)
    for service in "$@"; do
        grep -qxF "${service}" <<<"${services}" || fail "${address} does not list ${service}: ${services}"
    done
}

echo "grpcurl_test: services"
lists "${router}" vmemkv.v1.Kv vmemkv.v1.Router vmemkv.v1.Admin grpc.health.v1.Health
lists "${server}" vmemkv.v1.Kv vmemkv.v1.NodeAdmin grpc.health.v1.Health
"${grpcurl}" -plaintext -max-time 30 "${router}" describe vmemkv.v1.Kv.Get | grep -q GetRequest ||
    fail "Kv.Get is not described"
"${grpcurl}" -plaintext -max-time 30 "${router}" describe vmemkv.v1.PutRequest |
    grep -q condition || fail "PutRequest is not described"

echo "grpcurl_test: health"
for address in "${router}" "${server}"; do
    answer=$(call "${address}" grpc.health.v1.Health/Check '{}')
    expect "health of ${address}" "${answer}" 'a["status"] == "SERVING"'
done

for address in "${router}" "${server}"; do
    echo "grpcurl_test: data at ${address}"
    key=$(encode "grpcurl/${address}/1")
    value=$(encode "a value")
    other=$(encode "another value")

    answer=$(call "${address}" vmemkv.v1.Kv/Get "{\"key\": \"${key}\"}")
    expect "a missing key" "${answer}" '"value" not in a'
    answer=$(call "${address}" vmemkv.v1.Kv/Put "{\"key\": \"${key}\", \"value\": \"${value}\"}")
    expect "put" "${answer}" 'a["applied"]'
    answer=$(call "${address}" vmemkv.v1.Kv/Get "{\"key\": \"${key}\"}")
    expect "get" "${answer}" "a[\"value\"] == \"${value}\""

    condition='"condition": {"ifAbsent": true}'
    answer=$(call "${address}" vmemkv.v1.Kv/Put \
        "{\"key\": \"${key}\", \"value\": \"${other}\", ${condition}}")
    expect "put if absent" "${answer}" "not a.get(\"applied\") and a[\"current\"] == \"${value}\""
    condition="\"condition\": {\"ifValueEquals\": \"${value}\"}"
    answer=$(call "${address}" vmemkv.v1.Kv/Put \
        "{\"key\": \"${key}\", \"value\": \"${other}\", ${condition}}")
    expect "put if equal" "${answer}" 'a["applied"]'

    answer=$(call "${address}" vmemkv.v1.Kv/Scan \
        "{\"prefix\": \"$(encode "grpcurl/${address}/")\"}" |
        python3 -c 'import json, sys
text, entries, decoder = sys.stdin.read().strip(), [], json.JSONDecoder()
done = False
while text:
    part, end = decoder.raw_decode(text)
    text = text[end:].strip()
    entries += part.get("entries", [])
    done = part.get("done", False)
print(json.dumps({"entries": entries, "done": done}))')
    expect "scan" "${answer}" \
        "a[\"done\"] and [(e[\"key\"], e[\"value\"]) for e in a[\"entries\"]] == [(\"${key}\", \"${other}\")]"

    answer=$(call "${address}" vmemkv.v1.Kv/BatchGet "{\"id\": 7, \"keys\": [\"${key}\", \"eA==\"]}")
    expect "batch get" "${answer}" \
        "a[\"id\"] == \"7\" and a[\"results\"] == [{\"value\": \"${other}\"}, {\"missing\": True}]"

    answer=$(call "${address}" vmemkv.v1.Kv/Delete "{\"key\": \"${key}\"}")
    expect "delete" "${answer}" 'a["applied"] and a["existed"]'
    answer=$(call "${address}" vmemkv.v1.Kv/Get "{\"key\": \"${key}\"}")
    expect "get after delete" "${answer}" '"value" not in a'

    answer=$(call "${address}" vmemkv.v1.Kv/GetInfo '{}')
    expect "info" "${answer}" 'a["version"] and a["maxKeyBytes"] == "4096" or a["maxKeyBytes"] == 4096'

    if answer=$(call "${address}" vmemkv.v1.Kv/Put '{"value": "eA=="}' 2>&1); then
        fail "an empty key was taken: ${answer}"
    fi
    grep -q InvalidArgument <<<"${answer}" || fail "an empty key is not InvalidArgument: ${answer}"
    grep -qi key <<<"${answer}" || fail "the error does not name the key: ${answer}"
done

echo "grpcurl_test: administration"
answer=$(call "${router}" vmemkv.v1.Admin/GetClusterStatus '{}')
expect "cluster status" "${answer}" 'a["healthy"] and int(a["nodes"]["up"]) == 1 and int(a["shards"]) >= 1'
answer=$(call "${router}" vmemkv.v1.Admin/ListNodes '{}')
expect "nodes" "${answer}" 'len(a["nodes"]) == 1'
answer=$(call "${server}" vmemkv.v1.NodeAdmin/GetStats '{}')
expect "statistics" "${answer}" 'a["state"] == "healthy" and int(a["operations"]["puts"]) >= 2'
answer=$(call "${server}" vmemkv.v1.NodeAdmin/Checkpoint '{}')
expect "checkpoint" "${answer}" 'int(a["checkpointLsn"]) >= 1'

echo "grpcurl_test: passed"
