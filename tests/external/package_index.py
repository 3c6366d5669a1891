#!/usr/bin/env python3
"""A real data set: the package index that apt keeps on every Debian machine, imported by the
command line and compared with its source by count, checksum, prefix scan, reverse scan, 1000 point
reads and export.

usage: package_index.py BINARY ROUTER FOLDER      (after `apt-get update`)
"""

import json
import random
import subprocess
import sys
import time

import xxhash

LEAST_ENTRIES = 60_000
POINT_READS = 1000


def package_index():
    """Key name/version, value the stanza; the last of equal keys counts, as in an import."""
    text = subprocess.run(
        ["apt-cache", "dumpavail"], check=True, capture_output=True
    ).stdout.decode("utf-8")
    entries = []
    for stanza in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " "
        )
        if "Package" in fields and "Version" in fields:
            entries.append((f"{fields['Package']}/{fields['Version']}", stanza.strip("\n")))
    return entries


def checksum(entries):
    total = 0
    for key, value in entries.items():
        key, value = key.encode(), value.encode()
        total ^= xxhash.xxh3_64_intdigest(len(key).to_bytes(4, "little") + key + value, seed=0)
    return f"{total:016x}"


def main():
    binary, router, folder = sys.argv[1:]

    def vmemkv(*arguments):
        command = [binary, "--addr", router, *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode()

    def lines(text):
        return [(entry["key"], entry["value"]) for entry in map(json.loads, text.splitlines())]

    listed = package_index()
    entries = dict(listed)
    assert len(entries) >= LEAST_ENTRIES, f"{len(entries)} packages: run apt-get update first"
    lengths = [len(value.encode()) for value in entries.values()]
    print(f"package index: {len(entries)} entries, {sum(lengths)} bytes of values,"
          f" {min(lengths)} to {max(lengths)} each")
    file = f"{folder}/packages.jsonl"
    with open(file, "w", encoding="utf-8") as out:
        for key, value in listed:
            out.write(json.dumps({"key": key, "value": value}, ensure_ascii=False) + "\n")
    before = int(vmemkv("count"))
    assert before == 0, f"the service holds {before} entries already"
    began = time.monotonic()
    vmemkv("import", file)
    print(f"package index: imported in {time.monotonic() - began:.1f} s")

    assert int(vmemkv("count")) == len(entries)
    assert vmemkv("checksum").strip() == checksum(entries)
    ordered = sorted(entries.items(), key=lambda entry: entry[0].encode())
    libraries = [entry for entry in ordered if entry[0].startswith("lib")]
    scanned = lines(vmemkv("scan", "--json", "--prefix", "lib"))
    assert scanned == libraries, f"prefix scan: {len(scanned)} of {len(libraries)}"
    scanned = lines(vmemkv("scan", "--json", "--reverse"))
    assert scanned == ordered[::-1], f"reverse scan: {len(scanned)} of {len(ordered)}"
    exported = f"{folder}/exported.jsonl"
    vmemkv("export", exported)
    with open(exported, encoding="utf-8") as out:
        assert lines(out.read()) == ordered, "export"
    seed = random.randrange(1 << 32)
    print(f"package index: seed {seed}")
    choice = random.Random(seed).choices(ordered, k=POINT_READS)
    for key, value in choice:
        assert vmemkv("get", key).removesuffix("\n") == value, key
    print("package index: agrees with its source")


if __name__ == "__main__":
    main()
