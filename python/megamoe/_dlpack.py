"""Reads DLPack capsules without numpy or torch: where the data lies, its type, its extents."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from megamoe._errors import InvalidArgumentError

HOST_DEVICES = {1, 3}  # kDLCPU, kDLCUDAHost (pinned)
CUDA_DEVICES = {2, 13}  # kDLCUDA, kDLCUDAManaged
READ_ONLY = 1

# (type code, bits) of DLPack 1.1
_TYPES: dict[tuple[int, int], str] = {
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (2, 32): "float32",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (14, 8): "float8_e8m0fnu",
}
_NAMES = {
    0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool", 7: "float8_e3m4_",
    8: "float8_e4m3_", 9: "float8_e4m3b11fnuz_", 10: "float8_e4m3fn_", 11: "float8_e4m3fnuz_", 12: "float8_e5m2_",
    13: "float8_e5m2fnuz_", 14: "float8_e8m0fnu_",
}  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype = ctypes.c_char_p
_get_name.argtypes = [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Memory(NamedTuple):
    """What an array says of its memory, by whatever protocol. `owner` keeps it there."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    on_cuda: bool
    device_index: int
    writable: bool
    owner: Any


def _capsule(value: Any, stream: int | None) -> Any:
    arguments: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        return value.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:
        return value.__dlpack__(**arguments)  # a producer older than DLPack 1.0


def export(value: Any, what: str, stream: int | None) -> Memory:
    """Asks `value` for its DLPack capsule, which stays unconsumed, so that its own destructor gives the memory back.

    `stream`: the CUDA stream that will read the data, as a number; None for the legacy default stream.
    """
    device_type, device_id = value.__dlpack_device__()
    device_type = int(device_type)
    if device_type not in HOST_DEVICES | CUDA_DEVICES:
        raise InvalidArgumentError(
            f"megamoe: {what} must lie in host or CUDA memory, got DLPack device type {device_type}; copy it there"
        )
    on_cuda = device_type in CUDA_DEVICES
    try:
        capsule = _capsule(value, stream if on_cuda else None)
    except BufferError as error:
        raise InvalidArgumentError(
            f"megamoe: {what} must be exportable by DLPack, and it is not ({error}); pass its bytes as uint8 and say "
            'the type: megamoe.typed(array, "float8_e4m3fn")'
        ) from error
    name = _get_name(capsule)
    pointer = _get_pointer(capsule, name)
    read_only = False
    if name == b"dltensor_versioned":
        versioned = ctypes.cast(pointer, ctypes.POINTER(_Versioned)).contents
        if versioned.major != 1:
            raise InvalidArgumentError(
                f"megamoe: {what} must be exported by DLPack 1.x, got version {versioned.major}.{versioned.minor}"
            )
        tensor, read_only = versioned.tensor, bool(versioned.flags & READ_ONLY)
    else:
        tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
    dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        kind = f"{_NAMES.get(tensor.code, f'type code {tensor.code} of ')}{tensor.bits}"
        dtype = kind.removesuffix("_8") if tensor.bits == 8 else kind
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else dense_strides(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    return Memory(address, dtype, shape, strides, on_cuda, int(device_id), not read_only, (value, capsule))


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)
