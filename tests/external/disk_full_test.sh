#!/usr/bin/env bash
# A real file system that fills up: ext4 on a loop device of 320 MiB. Fills the service until puts are
# refused with RESOURCE_EXHAUSTED; reads and deletes work; kill -9 and restart work; after half is deleted
# puts resume by themselves. Needs root, for the mount. Usage: disk_full_test.sh BINARY WORK-FOLDER
set -euo pipefail
binary=$1
work=$(mktemp -d "$2/disk-full-XXXXXXXX")

if [[ $(id -u) -ne 0 ]]; then
    echo "disk_full: must run as root, to mount a file system" >&2
    exit 1
fi

service=
stop() {
    local status=$?
    # Nothing here may end the clean-up: a mount would stay.
    set +e
    if [[ -n ${service} ]]; then
        kill -9 "${service}" 2>/dev/null
        wait "${service}" 2>/dev/null
    fi
    if [[ ${status} -ne 0 ]]; then
        echo "disk_full: the end of the service's log:" >&2
        tail -n 40 "${work}/log" >&2
    fi
    umount "${work}/disk" 2>/dev/null || umount -l "${work}/disk" 2>/dev/null
    rm -rf "${work}"
    exit "${status}"
}
trap stop EXIT

mkdir "${work}/disk"
truncate -s 320M "${work}/image"
mkfs.ext4 -q -m 0 "${work}/image"
mount -o loop "${work}/image" "${work}/disk"

start() {
    : >"${work}/ready.json"
    "${binary}" dev --data "${work}/disk/data" --router-port 0 --server-port 0 --json \
        >"${work}/ready.json" 2>>"${work}/log" &
    service=$!
    for _ in $(seq 600); do
        if [[ $(wc -l <"${work}/ready.json") -ge 1 ]]; then
            router=$(python3 -c 'import json, sys
print(json.loads(open(sys.argv[1]).readline())["router"])' "${work}/ready.json")
            return
        fi
        if ! kill -0 "${service}" 2>/dev/null; then
            echo "disk_full: vmemkv dev ended before it was ready" >&2
            exit 1
        fi
        sleep 0.1
    done
    echo "disk_full: vmemkv dev is not ready after 60 s" >&2
    exit 1
}

run() {
    "${binary}" --addr "${router}" "$@"
}

# Keys of 2 MB, cheap by number: what fills the disk.
head -c 2000000 /dev/urandom >"${work}/value"
put() {
    run put "$1" --file "${work}/value"
}

start
count=0
while put "key-$(printf %04d "${count}")" >/dev/null 2>"${work}/error"; do
    count=$((count + 1))
    if [[ ${count} -gt 200 ]]; then
        echo "disk_full: 400 MB fit a disk of 320 MiB" >&2
        exit 1
    fi
done
grep -q RESOURCE_EXHAUSTED "${work}/error" || {
    echo "disk_full: refused, but not with RESOURCE_EXHAUSTED:" >&2
    cat "${work}/error" >&2
    exit 1
}
echo "disk_full: full after ${count} values; $(df -m --output=avail "${work}/disk" | tail -1) MiB left"
[[ ${count} -ge 40 ]]

reads() {
    rm -f "${work}/found"
    run get "$1" --file "${work}/found" >/dev/null
    cmp "${work}/found" "${work}/value"
}
reads key-0001
[[ $(run node stats --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])') == disk-full ]]

# It dies and comes back on a full disk.
kill -9 "${service}"
wait "${service}" 2>/dev/null || true
start
reads key-0001
reads "key-$(printf %04d $((count - 1)))"

# Half of it goes, every other key, on the full disk.
for number in $(seq 0 2 $((count - 1))); do
    run delete "key-$(printf %04d "${number}")" >/dev/null
done
resumed=
for _ in $(seq 60); do
    if put key-after >/dev/null 2>&1; then
        resumed=yes
        break
    fi
    sleep 0.5
done
[[ -n ${resumed} ]] || {
    echo "disk_full: puts do not resume after half was deleted" >&2
    run node stats >&2
    exit 1
}
reads key-after
reads key-0001
run node verify
kill -9 "${service}"
wait "${service}" 2>/dev/null || true
start
reads key-after
reads key-0001
echo "disk_full: passed"
