"""Turns what callers have (numpy, torch, anything with DLPack) into views for the C interface. Nothing is copied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from megamoe import _dlpack, _structs
from megamoe._dlpack import Memory
from megamoe._errors import InvalidArgumentError

ArrayLike = Any
"""A numpy array, a torch tensor, a `typed(...)` array, or anything with `__dlpack__` or `__cuda_array_interface__`."""

ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}
_ALIASES = {"float8_e8m0": "float8_e8m0fnu"}
_BYTE_TYPES = {"uint8": 1, "int8": 1, "uint16": 2, "int16": 2}


class View(NamedTuple):
    """A struct for the C interface, and what keeps its memory alive."""

    tensor: _structs.Tensor
    owner: Any
    on_cuda: bool
    device_index: int
    shape: tuple[int, ...]


class Typed:
    """See `typed`."""

    def __init__(self, array: Any, dtype: str) -> None:
        self.array = array
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"megamoe.typed({type(self.array).__name__}, {self.dtype!r})"


def typed(array: ArrayLike, dtype: str) -> Typed:
    """Says how the elements of an integer array are to be read, for types that its own library lacks.

    `array`: uint8 or int8 for "float8_e4m3fn" and "float8_e8m0fnu", uint16 or int16 for "bfloat16". Nothing is copied.
    """
    dtype = _ALIASES.get(dtype, dtype)
    if dtype not in ("float8_e4m3fn", "float8_e8m0fnu", "bfloat16"):
        raise InvalidArgumentError(
            f"megamoe.typed: dtype must be float8_e4m3fn, float8_e8m0fnu or bfloat16, got {dtype!r}; arrays of other "
            "types need no word"
        )
    return Typed(array, dtype)


def is_torch(value: Any) -> bool:
    """Whether it is a torch tensor; torch is never imported for the question."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def _strides_in_elements(
    strides: Sequence[int] | None, shape: tuple[int, ...], size: int, what: str
) -> tuple[int, ...]:
    if strides is None:
        return _dlpack.dense_strides(shape)
    for extent, stride in zip(shape, strides):
        if extent > 1 and stride % size != 0:
            raise InvalidArgumentError(
                f"megamoe: the strides of {what} must be multiples of its {size}-byte elements, got {stride} bytes; "
                "copy it first"
            )
    return tuple(stride // size for stride in strides)


def _from_torch(value: Any, what: str) -> Memory:
    device = value.device
    if device.type not in ("cpu", "cuda") or str(value.layout) != "torch.strided":
        raise InvalidArgumentError(
            f"megamoe: {what} must be a strided tensor in host or CUDA memory, got device {device} and layout "
            f"{value.layout}; copy it there"
        )
    return Memory(
        value.data_ptr(),
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
        tuple(value.stride()),
        device.type == "cuda",
        device.index or 0,
        True,
        value,
    )


def _from_numpy(value: Any, what: str) -> Memory:
    dtype = value.dtype
    if dtype.byteorder == ">":
        raise InvalidArgumentError(f"megamoe: {what} must be little-endian, got {dtype}; convert it first")
    interface = value.__array_interface__
    address, read_only = interface["data"]
    strides = _strides_in_elements(value.strides, value.shape, dtype.itemsize, what)
    return Memory(address, dtype.name, tuple(value.shape), strides, False, 0, not read_only, value)


def _from_cuda_interface(value: Any, what: str) -> Memory:
    interface = value.__cuda_array_interface__
    address, read_only = interface["data"]
    kind = interface["typestr"]
    names = {"<f4": "float32", "<i4": "int32", "<i8": "int64", "|u1": "uint8", "|i1": "int8", "<u2": "uint16"}
    shape = tuple(interface["shape"])
    strides = _strides_in_elements(interface.get("strides"), shape, int(kind[2:]), what)
    device_index = getattr(value, "device_index", 0)  # of a DeviceArray; the interface itself does not say it
    return Memory(address or 0, names.get(kind, kind), shape, strides, True, device_index, not read_only, value)


def _raw(value: Any, what: str, stream: int | None) -> Memory:
    if is_torch(value):
        return _from_torch(value, what)
    if hasattr(value, "__array_interface__") and hasattr(value, "strides") and hasattr(value, "dtype"):
        return _from_numpy(value, what)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _dlpack.export(value, what, stream)
    if hasattr(value, "__cuda_array_interface__"):
        return _from_cuda_interface(value, what)
    raise InvalidArgumentError(
        f"megamoe: {what} must be a numpy array, a torch tensor or an object with DLPack, got {type(value).__name__}"
    )


def absent() -> View:
    """A tensor that is not given."""
    return View(_structs.Tensor(), None, False, 0, ())


def view_of(value: ArrayLike | None, what: str, *, written: bool = False, stream: int | None = None) -> View:
    """The C interface's view of an array.

    `what`: its name in errors. `written`: whether the library writes it. `stream`: see `_dlpack.export`.
    """
    if value is None:
        return absent()
    declared = value.dtype if isinstance(value, Typed) else None
    raw = _raw(value.array if isinstance(value, Typed) else value, what, stream)
    dtype = _ALIASES.get(raw.dtype, raw.dtype)
    if declared is not None and dtype != declared:
        if _BYTE_TYPES.get(dtype) != ITEM_BYTES[declared]:
            raise InvalidArgumentError(
                f"megamoe: {what} was declared as {declared}, so its elements must be integers of "
                f"{ITEM_BYTES[declared]} byte(s), got {dtype}"
            )
        dtype = declared
    if dtype not in _structs.DTYPES:
        raise InvalidArgumentError(
            f"megamoe: {what} must have one of the dtypes {', '.join(_structs.DTYPES)}, got {dtype}; convert it first"
            + (', or say what its bytes are: megamoe.typed(array, "float8_e4m3fn")' if dtype in _BYTE_TYPES else "")
        )
    if len(raw.shape) > _structs.MAX_DIMS:
        raise InvalidArgumentError(
            f"megamoe: {what} must have at most {_structs.MAX_DIMS} dimensions, got {len(raw.shape)}; reshape it"
        )
    if written and not raw.writable:
        raise InvalidArgumentError(f"megamoe: {what} must be writable, got a read-only array; copy it first")
    tensor = _structs.Tensor(
        data=raw.address or None,
        dtype=_structs.DTYPES[dtype],
        num_dims=len(raw.shape),
        device=int(raw.on_cuda),
        device_index=raw.device_index,
    )
    for dim, (extent, stride) in enumerate(zip(raw.shape, raw.strides)):
        tensor.shape[dim] = extent
        tensor.strides[dim] = stride
    return View(tensor, raw.owner, raw.on_cuda, raw.device_index, raw.shape)


class DeviceArray:
    """GPU memory of a layer, for libraries that read `__cuda_array_interface__` (torch, CuPy). Row-major, not owned."""

    def __init__(self, tensor: _structs.Tensor, owner: Any) -> None:
        names = {number: name for name, number in _structs.DTYPES.items()}
        self.dtype = names[tensor.dtype]
        self.shape = tuple(tensor.shape[: tensor.num_dims])
        self.device_index = int(tensor.device_index)
        self._address = tensor.data or 0
        self._owner = owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = "<f4" if self.dtype == "float32" else "|u1"  # FP8 codes as their bytes
        return {"shape": self.shape, "typestr": kind, "data": (self._address, False), "version": 3, "strides": None}

    def __repr__(self) -> str:
        return f"<megamoe.DeviceArray {self.dtype} {list(self.shape)} on GPU {self.device_index}>"


class _HostArray:
    """The same in host memory, for numpy, which keeps it as the base of what it makes."""

    def __init__(self, tensor: _structs.Tensor, owner: Any) -> None:
        kind = "<f4" if tensor.dtype == _structs.DTYPES["float32"] else "|u1"
        self._owner = owner
        self.__array_interface__ = {
            "shape": tuple(tensor.shape[: tensor.num_dims]),
            "typestr": kind,
            "data": (tensor.data or 0, False),
            "version": 3,
            "strides": None,
        }


def array_of(tensor: _structs.Tensor, owner: Any) -> Any:
    """Dense memory of the library as a numpy array (FP8 by ml_dtypes), or a DeviceArray on a GPU."""
    if tensor.device:
        return DeviceArray(tensor, owner)
    import numpy as np

    array = np.asarray(_HostArray(tensor, owner))
    if tensor.dtype != _structs.DTYPES["float8_e4m3fn"]:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.float8_e4m3fn)


def stream_number(stream: Any) -> int | None:
    """The cudaStream_t of a number, a torch stream, a CuPy stream or an object with `__cuda_stream__`; None of None."""
    if stream is None or isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise InvalidArgumentError(
        f"megamoe: stream must be a cudaStream_t as a number or a stream of torch or CuPy, got {type(stream).__name__}"
    )


def current_stream(value: Any) -> int | None:
    """Torch's current stream on the GPU of a torch tensor; None of anything else."""
    array = value.array if isinstance(value, Typed) else value
    if is_torch(array) and array.device.type == "cuda":
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    return None


def wait_for_producers(values: Sequence[Any]) -> None:
    """Waits for what torch's current stream still has to do where it is not the default one, which the library's own
    looks at GPU memory follow."""
    for value in values:
        stream = current_stream(value)
        if stream:
            array = value.array if isinstance(value, Typed) else value
            sys.modules["torch"].cuda.current_stream(array.device).synchronize()
            return


def producer_stream(values: Sequence[Any]) -> int:
    """The stream on which arrays without a word about it were written: torch's current one, or the default stream."""
    return next((stream for value in values if (stream := current_stream(value)) is not None), 0)


def new_output(like: ArrayLike, shape: tuple[int, int]) -> Any:
    """An uninitialised BF16 array of the same library and device as `like`."""
    array = like.array if isinstance(like, Typed) else like
    if is_torch(array):
        return array.new_empty(shape, dtype=sys.modules["torch"].bfloat16)
    if hasattr(array, "__array_interface__"):
        import numpy as np

        try:
            import ml_dtypes
        except ImportError as error:
            raise InvalidArgumentError(
                "megamoe: output must be given where ml_dtypes is not installed, since numpy has no bfloat16; pass "
                'megamoe.typed(uint16_array, "bfloat16") or install ml_dtypes'
            ) from error
        return np.empty(shape, dtype=ml_dtypes.bfloat16)
    raise InvalidArgumentError(
        f"megamoe: output must be given for hidden_states of type {type(array).__name__}; only numpy arrays and torch "
        "tensors are allocated here"
    )
