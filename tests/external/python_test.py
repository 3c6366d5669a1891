#!/usr/bin/env python3
"""A Python service without our .proto files: everything is learnt by reflection, and the channel
keeps the limits that grpcio has by default (4 MiB for a message that is received).

usage: python_test.py ROUTER SERVER
"""

import os
import struct
import sys

import grpc
import xxhash
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

VALUES = 64
VALUE_BYTES = 256 << 10
MESSAGE_BYTES = 4 << 20
TIMEOUT_S = 60
LISTED = ("vmemkv.v1.Kv", "grpc.health.v1.Health")


class Service:
    """A service, by reflection: a method is an attribute."""

    def __init__(self, channel, pool, name):
        self.channel, self.pool = channel, pool
        self.descriptor = pool.FindServiceByName(name)

    def message(self, name):
        return GetMessageClass(self.pool.FindMessageTypeByName("vmemkv.v1." + name))

    def __getattr__(self, name):
        method = self.descriptor.methods_by_name[name]
        kind = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        call = kind(
            f"/{self.descriptor.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return lambda request: call(request, timeout=TIMEOUT_S)


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def listed_services(channel, version):
    """The services that reflection of a version lists; None if it is not offered."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    try:
        answers = list(call(iter([request]), timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise
    return [service.name for answer in answers for service in answer.list_services_response.service]


def check_reflection(channel):
    for version in ("v1alpha", "v1"):
        services = listed_services(channel, version)
        check(services is not None, f"reflection {version} is not offered")
        for name in LISTED:
            check(name in services, f"reflection {version} does not list {name}: {services}")
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S
    )
    check(answer.status == health_pb2.HealthCheckResponse.SERVING, "not serving")


def check_size(message):
    check(message.ByteSize() < MESSAGE_BYTES, f"a message of {message.ByteSize()} bytes")


def check_large_values(kv, prefix):
    """64 values of 256 KiB: more than four messages' worth, one frame, one scan."""
    pairs = {prefix + b"%04d" % i: os.urandom(VALUE_BYTES) for i in range(VALUES)}
    for key, value in pairs.items():
        answer = kv.Put(kv.message("PutRequest")(key=key, value=value))
        check(answer.applied, "a put was not applied")

    keys = list(pairs)
    frame = kv.message("BatchGetRequest")(id=42, keys=keys)
    results, done = {}, False
    for message in kv.BatchGet(iter([frame])):
        check_size(message)
        check(message.id == 42, f"an answer for frame {message.id}")
        check(not done, "a message after the last one")
        done = message.done
        for index, result in enumerate(message.results, message.first):
            check(result.WhichOneof("result") == "value", f"key {index}: {result}")
            check(index not in results, f"two results for key {index}")
            results[index] = result.value
    check(done, "BatchGet ended before it was done")
    check([results.get(i) for i in range(VALUES)] == [pairs[key] for key in keys], "BatchGet")

    entries, done = [], False
    for message in kv.Scan(kv.message("ScanRequest")(prefix=prefix)):
        check_size(message)
        entries += [(entry.key, entry.value) for entry in message.entries]
        done = message.done
    check(done, "Scan ended before it was done")
    check(entries == sorted(pairs.items()), "Scan")

    entries = []
    request = kv.message("ScanRequest")(prefix=prefix, reverse=True, keys_only=True, limit=10)
    for message in kv.Scan(request):
        entries += [entry.key for entry in message.entries]
    check(entries == sorted(pairs, reverse=True)[:10], "Scan in reverse, keys only")

    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    answer = kv.Checksum(kv.message("ChecksumRequest")(start=start, end=end))
    expected = 0
    for key, value in pairs.items():
        expected ^= xxhash.xxh3_64_intdigest(struct.pack("<I", len(key)) + key + value)
    check((answer.count, answer.checksum) == (VALUES, expected), f"Checksum: {answer}")
    check(answer.bytes == sum(len(k) + len(v) for k, v in pairs.items()), "bytes of Checksum")

    answer = kv.DeleteRange(kv.message("DeleteRangeRequest")(start=start, end=end))
    check((answer.deleted, answer.done) == (VALUES, True), f"DeleteRange: {answer}")


def check_conditions(kv, prefix):
    put, condition = kv.message("PutRequest"), kv.message("Condition")
    key = prefix + b"condition"
    absent, present = condition(if_absent=True), condition(if_present=True)

    answer = kv.Put(put(key=key, value=b"1", condition=present))
    check(not answer.applied and not answer.HasField("current"), "if_present of a missing key")
    check(kv.Put(put(key=key, value=b"1", condition=absent)).applied, "if_absent")
    answer = kv.Put(put(key=key, value=b"2", condition=absent))
    check(not answer.applied and answer.current == b"1", "if_absent of a present key")
    equals = condition(if_value_equals=b"1")
    check(kv.Put(put(key=key, value=b"2", condition=equals)).applied, "if_value_equals")
    answer = kv.Put(put(key=key, value=b"3", condition=equals))
    check(not answer.applied and answer.current == b"2", "if_value_equals of another value")

    # An empty value is a value.
    check(kv.Put(put(key=key, value=b"")).applied, "an empty value")
    answer = kv.Get(kv.message("GetRequest")(key=key))
    check(answer.HasField("value") and answer.value == b"", "an empty value is there")
    check(kv.Delete(kv.message("DeleteRequest")(key=key)).existed, "delete")


def error_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("no error")


def check_errors(kv, prefix):
    put, details = kv.message("PutRequest"), kv.message("Error")
    for field, request in (
        ("key", put(key=b"", value=b"1")),
        ("key", put(key=prefix + b"k" * 4096, value=b"1")),
        ("condition", put(key=prefix, condition=kv.message("Condition")())),
    ):
        error = error_of(lambda: kv.Put(request))
        check(error.code() == grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {error.code()}")
        check(field in error.details(), f"the error does not name {field}: {error.details()}")
        trailer = dict(error.trailing_metadata()).get("grpc-status-details-bin")
        check(trailer is not None, "the error has no details")
        check(len(trailer) < 4096, "the details are too long")
        status = status_pb2.Status.FromString(trailer)
        check(status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], "code of the details")
        ours = [a for a in status.details if a.type_url.endswith("/vmemkv.v1.Error")]
        check(len(ours) == 1, f"details: {[a.type_url for a in status.details]}")
        detail = details.FromString(ours[0].value)
        check(detail.code == status.code and field in detail.message, f"detail: {detail}")

    # In a batch, a wrong operation fails alone.
    operation = kv.message("BatchOperation")
    put_operation = kv.message("PutOperation")
    good, bad = prefix + b"good", prefix + b"b" * 5000
    frame = kv.message("BatchPutRequest")(
        id=1,
        operations=[
            operation(put=put_operation(key=bad, value=b"1")),
            operation(put=put_operation(key=good, value=b"2")),
        ],
    )
    results = [r for m in kv.BatchPut(iter([frame])) for r in m.results]
    check([r.WhichOneof("result") for r in results] == ["error", "applied"], f"{results}")
    check(results[0].error.code == 3, f"{results[0]}")
    check(kv.Get(kv.message("GetRequest")(key=good)).value == b"2", "the good operation")


def check_service(role, address):
    print(f"python_test: {role} at {address}")
    prefix = b"python/" + role.encode() + b"/"
    with grpc.insecure_channel(address) as channel:
        check_reflection(channel)
        kv = Service(channel, DescriptorPool(ProtoReflectionDescriptorDatabase(channel)), "vmemkv.v1.Kv")
        info = kv.GetInfo(kv.message("GetInfoRequest")())
        check(info.role == role, f"GetInfo: {info}")
        check((info.max_key_bytes, info.max_value_bytes) == (4096, 8 << 20), f"GetInfo: {info}")
        check_conditions(kv, prefix)
        check_errors(kv, prefix)
        check_large_values(kv, prefix + b"large/")


def main():
    router, server = sys.argv[1:]
    check_service("router", router)
    check_service("server", server)
    print("python_test: passed")


if __name__ == "__main__":
    main()
