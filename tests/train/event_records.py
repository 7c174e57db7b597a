"""Reads TensorBoard's event files as docs/formats/metrics.md describes them, with
only Python's standard library. A deviation from the document is an
AssertionError."""
import struct


def crc32c(data):
    """The slow, obvious version."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    content = path.read_bytes()
    while content:
        size, of_size = struct.unpack_from("<QI", content)
        assert of_size == masked(content[:8]), "checksum of a length"
        data = content[12:12 + size]
        of_data, = struct.unpack_from("<I", content, 12 + size)
        assert of_data == masked(data), "checksum of a record"
        yield data
        content = content[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """The number and value of each field of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            code, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            (value,), at = struct.unpack_from(code, data, at), at + size
        yield key >> 3, value


def read(path):
    """The scalars of a file, as {tag: {step: value}}, and the step of its START
    record."""
    events = [dict(fields(data)) for data in records(path)]
    assert events[0][3] == b"brain.Event:2", events[0]
    assert dict(fields(events[1][7])) == {1: 1}, events[1]
    scalars = {}
    for event in events[2:]:
        assert event[1] > 1e9, "a time since 1970"
        for number, value in fields(event[5]):
            assert number == 1
            point = dict(fields(value))
            of_tag = scalars.setdefault(point[1].decode(), {})
            assert event[2] not in of_tag, "one point a step"
            of_tag[event[2]] = point[2]
    return scalars, events[1].get(2, 0)
