"""The safetensors format in a few lines of plain Python, for the tests of our
implementation."""
import json
import struct
from pathlib import Path


def write(path, tensors, metadata):
    """`tensors` maps a name to (dtype, shape, bytes)."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """Returns the tensors in the form of write(), and the metadata."""
    whole = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8:8 + length])
    data = whole[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors, metadata
