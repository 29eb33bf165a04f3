"""The one class most users need: an expert-parallel MoE layer on one rank of a group."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from megamoe import _structs
from megamoe._arguments import (
    Arguments,
    choice,
    clamp_number,
    layer_config,
    own_group,
    rank_bits,
    shape_of_weights,
)
from megamoe._errors import InvalidArgumentError
from megamoe._groups import Group
from megamoe._library import check, lib, nanoseconds
from megamoe._tensors import (
    ArrayLike,
    Typed,
    View,
    absent,
    array_of,
    new_output,
    producer_stream,
    stream_number,
    view_of,
    wait_for_producers,
)


class Weights:
    """Weights made ready by `MoELayer.prepare_weights`; they serve that layer until it is closed."""

    def __init__(self, handle: ctypes.c_void_p, owners: Any) -> None:
        self.handle = handle
        self._owners = owners

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), ctypes.c_void_p()
        if handle:
            lib.megamoe_weights_destroy(handle)


class MoELayer:
    """An expert-parallel MoE layer on one rank: y[t] = sum over slots of weight * expert(x[t]).

    Creating, calling, resetting and closing are collective: every rank of the group does it, each on its own thread or
    process. A layer may be used by one thread at a time.

        layer = megamoe.MoELayer(top_k=2, max_tokens_per_rank=64, w13=w13, w13_scale=w13_scale, w2=w2,
                                 w2_scale=w2_scale, w13_layout="gate_up", scale_format="float32")
        y = layer(hidden_states, topk_ids, topk_weights)

    Sizes (E experts over all ranks, n = E / ranks of them here, H hidden, I intermediate, K top_k):

    `hidden`: a multiple of 128. `intermediate`: a multiple of 64. `num_experts`: 1 to 1,024, divisible by the ranks.
    All three may be left out where the weights are given here. `top_k`: 1 to 32. `max_tokens_per_rank`: the capacity
    of one call on each rank.
    `group`: this rank's membership; None: a group of this rank alone, on `device`.
    `device`: "cpu", "cuda", "cuda:N" or N; None: where w13 lies, else "cpu". Only without `group`.
    `swiglu_clamp`: gate <= c and |up| <= c before SwiGLU; None: none.
    `num_shared_experts`: m experts of the same sizes that every token visits, with equal weights on every rank:
    y = routed_scaling * routed + shared. `routed_scaling` multiplies every top-k weight.
    `num_logical_experts`: topk_ids name logical experts below this number, and every call has an `expert_map` that says
    which of the E physical ones stand for them; 0: ids are physical.
    `backend`: "auto", "cpu" or "cuda". `num_threads`: CPU workers of this rank; 0 chooses.
    `num_reserved_sms`: SMs of a GPU that its ranks leave to other kernels.
    `timeout`: seconds of every wait for another rank; None: 300.
    The weights are those of `load_weights`.

    Raises ValueError, NotImplementedError, MemoryError, TimeoutError and ConnectionError (another rank refused or died)
    with the library's sentence; all are `megamoe.MegamoeError` too.
    """

    def __init__(
        self,
        *,
        top_k: int,
        max_tokens_per_rank: int,
        hidden: int | None = None,
        intermediate: int | None = None,
        num_experts: int | None = None,
        group: Group | None = None,
        device: int | str | None = None,
        swiglu_clamp: float | None = None,
        num_shared_experts: int = 0,
        routed_scaling: float = 1.0,
        num_logical_experts: int = 0,
        backend: str = "auto",
        num_threads: int = 0,
        num_reserved_sms: int = 0,
        timeout: float | None = None,
        w13: ArrayLike | None = None,
        w13_scale: ArrayLike | None = None,
        w2: ArrayLike | None = None,
        w2_scale: ArrayLike | None = None,
        w13_layout: str | None = None,
        scale_format: str | None = None,
        shared_w13: ArrayLike | None = None,
        shared_w13_scale: ArrayLike | None = None,
        shared_w2: ArrayLike | None = None,
        shared_w2_scale: ArrayLike | None = None,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._weights: Any = None
        self._last_call: Any = None
        self._torch_id: int | None = None
        if group is not None and device is not None:
            raise InvalidArgumentError(
                f"megamoe.MoELayer: device must be left out where group is given, since that has one, got {device!r}"
            )
        self.group = own_group(device, w13) if group is None else group
        where = "megamoe.MoELayer"
        arguments = Arguments(where)
        sizes: dict[str, Any] = {"hidden": hidden, "intermediate": intermediate, "num_experts": num_experts}
        if w13 is not None:
            found = arguments.read(lambda: shape_of_weights(w13, self.group.num_ranks), {})
            sizes = {name: found.get(name) if size is None else size for name, size in sizes.items()}
        sizes |= {
            "top_k": top_k, "max_tokens_per_rank": max_tokens_per_rank, "num_threads": num_threads,
            "num_shared_experts": num_shared_experts, "num_logical_experts": num_logical_experts,
            "num_reserved_sms": num_reserved_sms,
        }  # fmt: skip
        config = arguments.read(
            lambda: layer_config(sizes, where, timeout, swiglu_clamp, routed_scaling), _structs.LayerConfig()
        )
        config.backend = arguments.read(lambda: backend.encode(), None)
        code = lib.megamoe_layer_create(ctypes.byref(config), self.group.handle, ctypes.byref(self._handle))
        arguments.check(code)
        self.hidden = int(config.hidden)
        self.intermediate = int(config.intermediate)
        self.num_experts = int(config.num_experts)
        self.top_k = int(config.top_k)
        self.max_tokens_per_rank = int(config.max_tokens_per_rank)
        weights = {
            "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale, "shared_w13": shared_w13,
            "shared_w13_scale": shared_w13_scale, "shared_w2": shared_w2, "shared_w2_scale": shared_w2_scale,
        }  # fmt: skip
        if any(given is not None for given in weights.values()):
            try:
                self.load_weights(**weights, w13_layout=w13_layout, scale_format=scale_format)
            except BaseException:
                self._abandon()
                raise

    @property
    def handle(self) -> ctypes.c_void_p:
        """For the C interface."""
        if not self._handle:
            raise InvalidArgumentError("megamoe.MoELayer: the layer must be open, and it was closed")
        return self._handle

    def load_weights(
        self,
        w13: ArrayLike | None,
        w2: ArrayLike | None,
        w13_scale: ArrayLike | None,
        w2_scale: ArrayLike | None,
        *,
        w13_layout: str | None = None,
        scale_format: str | None = None,
        shared_w13: ArrayLike | None = None,
        shared_w13_scale: ArrayLike | None = None,
        shared_w2: ArrayLike | None = None,
        shared_w2_scale: ArrayLike | None = None,
    ) -> None:
        """Takes the weights of this rank's n experts, in expert order. They are used in place and kept alive.

        `w13`: [n, 2I, H] float8_e4m3fn. `w2`: [n, H, I] float8_e4m3fn.
        `w13_scale`: [n, 2, ceil(I/128), H/128], or [n, 2I/128, H/128] where I is a multiple of 128.
        `w2_scale`: [n, H/128, ceil(I/128)]. Both float32 or float8_e8m0fnu: value = code * scale.
        `w13_layout`: "gate_up" (I gate rows, then I up rows), "up_gate", "interleaved_1" or "interleaved_8". It also
        orders the halves of w13_scale; it must be stated, since gate and up rows look alike.
        `scale_format`: "float32", or "ue8m0" for powers of two; it must be stated too.
        `shared_...`: the same for the m shared experts, m in place of n, equal on all ranks; absent where m is 0.

        Not collective. May be called again between forward calls; `prepare_weights` is for switching often.
        """
        self.use_weights(
            self.prepare_weights(
                w13, w2, w13_scale, w2_scale, w13_layout=w13_layout, scale_format=scale_format, shared_w13=shared_w13,
                shared_w13_scale=shared_w13_scale, shared_w2=shared_w2, shared_w2_scale=shared_w2_scale,
            )
        )  # fmt: skip

    def prepare_weights(
        self,
        w13: ArrayLike | None,
        w2: ArrayLike | None,
        w13_scale: ArrayLike | None,
        w2_scale: ArrayLike | None,
        *,
        w13_layout: str | None = None,
        scale_format: str | None = None,
        shared_w13: ArrayLike | None = None,
        shared_w13_scale: ArrayLike | None = None,
        shared_w2: ArrayLike | None = None,
        shared_w2_scale: ArrayLike | None = None,
        keep_alive: bool = True,
    ) -> Weights:
        """Checks weights and makes them ready, for `use_weights`: one layer then serves all layers of a model, with one
        workspace. Arguments as in `load_weights`. `keep_alive`: whether the result keeps the arrays alive.
        """
        given = {
            "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale, "shared_w13": shared_w13,
            "shared_w13_scale": shared_w13_scale, "shared_w2": shared_w2, "shared_w2_scale": shared_w2_scale,
        }  # fmt: skip
        views = {name: view_of(value, name, stream=1) for name, value in given.items()}
        wait_for_producers(list(given.values()))
        weights = _structs.ExpertWeights(
            w13_layout=choice(_structs.W13_LAYOUTS, w13_layout, "megamoe.MoELayer.load_weights: w13_layout"),
            scale_format=choice(_structs.SCALE_FORMATS, scale_format, "megamoe.MoELayer.load_weights: scale_format"),
            **{name: view.tensor for name, view in views.items()},
        )
        made = ctypes.c_void_p()
        with self._lock:
            code = lib.megamoe_layer_prepare_weights(self.handle, ctypes.byref(weights), ctypes.byref(made))
            check(code, self._handle)
        return Weights(made, [view.owner for view in views.values()] if keep_alive else None)

    def use_weights(self, weights: Weights) -> None:
        """Later calls of this rank use these weights, made by `prepare_weights` of this layer. Costs nothing: calls
        that are enqueued already, and captured graphs, keep theirs. Not collective."""
        with self._lock:
            check(lib.megamoe_layer_use_weights(self.handle, weights.handle), self._handle)
            self._weights = weights

    def forward(
        self,
        hidden_states: ArrayLike,
        topk_ids: ArrayLike,
        topk_weights: ArrayLike,
        *,
        hidden_states_scale: ArrayLike | None = None,
        scale_format: str | None = None,
        output: ArrayLike | None = None,
        timeout: float | None = None,
        shared_weights: ArrayLike | None = None,
        expert_map: ArrayLike | None = None,
        active_ranks: Iterable[int] | None = None,
        renormalize: bool = False,
        cumulative_recv_counts: ArrayLike | None = None,
        swiglu_clamp: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Collective: runs this rank's T tokens, T from 0 to max_tokens_per_rank and different on every rank.

        `hidden_states`: [T, H] bfloat16 (quantised here), or float8_e4m3fn with `hidden_states_scale`.
        `hidden_states_scale`: [T, H/128] float32 or float8_e8m0fnu, row-major or group-major by its strides.
        `scale_format`: "float32" or "ue8m0"; required with `hidden_states_scale`.
        `topk_ids`: [T, K] int32 or int64; -1 masks a slot. `topk_weights`: [T, K] float32; not read where the id is -1.
        `output`: [T, H] bfloat16, written and returned; None: a new array of the same library as hidden_states.
        `timeout`: seconds, in place of the layer's.
        `shared_weights`: [T, m] float32, of the shared experts; None: 1.
        `expert_map`: [logical experts] or [logical experts, copies] int32, to physical experts or -1: see MoELayer.
        `active_ranks`: the ranks that make this call, equal on all of them; None: all. The experts of others contribute
        nothing; a rank that was left out takes part again after `reset()`.
        `renormalize`: whether the weights of a token make up for slots that map or absent ranks mask.
        `cumulative_recv_counts`: [n] int32 or int64, grows by the rows that this rank's experts received.
        `swiglu_clamp`: in place of the layer's, equal on all ranks; infinity for none.
        `stream`: for CUDA arrays, a cudaStream_t as a number or a stream of torch or CuPy: the call is enqueued there
        and returns; the arrays must stay as they are until the stream has passed it, and what the GPU finds wrong is
        raised by a later call or by `finish()`. None: the call runs after what torch's current stream (the default
        stream for other libraries) holds, and its end is waited for.

        A rank that is given wrong arguments makes the call fail on every rank, and the next call works. TimeoutError,
        or ConnectionError after a death, leave the layer poisoned until `reset()`.
        """
        where = "megamoe.MoELayer.forward"
        arguments = Arguments(where)
        given = {
            "hidden_states": hidden_states, "hidden_states_scale": hidden_states_scale, "topk_ids": topk_ids,
            "topk_weights": topk_weights, "shared_weights": shared_weights, "expert_map": expert_map,
        }  # fmt: skip
        chosen = arguments.read(lambda: stream_number(stream), None)
        consumer = producer_stream(list(given.values())) if chosen is None else chosen

        def read(name: str, value: ArrayLike | None, written: bool = False) -> View:
            made: View = arguments.read(lambda: view_of(value, name, written=written, stream=consumer or 1), absent())
            return made

        views = {name: read(name, value) for name, value in given.items()}
        tokens = views["hidden_states"]
        if output is None and len(tokens.shape) == 2 and tokens.shape[0] <= self.max_tokens_per_rank:
            output = arguments.read(lambda: new_output(hidden_states, (tokens.shape[0], self.hidden)), None)
        views["output"] = read("output", output, written=True)
        views["cumulative_recv_counts"] = read("cumulative_recv_counts", cumulative_recv_counts, written=True)
        enqueued = tokens.on_cuda
        if chosen is not None and not enqueued:
            error = InvalidArgumentError(f"{where}: stream must be left out for arrays in host memory, got {stream!r}")
            arguments.error = arguments.error or error
        args = _structs.ForwardArgs(
            scale_format=arguments.read(
                lambda: choice(_structs.SCALE_FORMATS, scale_format, f"{where}: scale_format"), 0
            ),
            timeout_ns=arguments.read(lambda: nanoseconds(timeout, where), 0),
            active_ranks=arguments.read(lambda: rank_bits(active_ranks, where), (ctypes.c_uint64 * 2)()),
            renormalize_weights=int(bool(renormalize)),
            swiglu_clamp=arguments.read(lambda: clamp_number(swiglu_clamp, where), 0.0),
            is_asynchronous=int(enqueued),
            cuda_stream=(consumer or None) if enqueued else None,
            **{name: view.tensor for name, view in views.items()},
        )
        if arguments.error is not None:
            args.hidden_states = _structs.Tensor()  # refused everywhere, whatever it was that could not be read
        with self._lock:
            code = lib.megamoe_layer_forward(self.handle, ctypes.byref(args))
            self._last_call = [view.owner for view in views.values()] if enqueued else None
            if enqueued and chosen is None and code == 0:
                code = lib.megamoe_layer_finish(self.handle)
                self._last_call = None
            arguments.check(code, self._handle)
        return output.array if isinstance(output, Typed) else output

    __call__ = forward

    def finish(self) -> None:
        """Waits for the last call that was enqueued on a stream, and raises the first failure of such calls that nobody
        was told of yet. Replays of a captured graph must have been waited for before. Not collective."""
        with self._lock:
            check(lib.megamoe_layer_finish(self.handle), self._handle)
            self._last_call = None

    def input_views(self) -> tuple[Any, Any]:
        """Where E4M3 tokens may be written so that a call on them copies nothing.

        Returns codes [max_tokens_per_rank, H] float8_e4m3fn and scales [max_tokens_per_rank, H/128] float32: numpy
        arrays, or on a GPU objects with `__cuda_array_interface__` (see megamoe.torch.input_views). Pass their first T
        rows to `forward`. They must not be used after `close()`; a call that is given other tokens overwrites them.
        """
        codes, scales = _structs.Tensor(), _structs.Tensor()
        with self._lock:
            code = lib.megamoe_layer_input_views(self.handle, ctypes.byref(codes), ctypes.byref(scales))
            check(code, self._handle)
        return array_of(codes, self), array_of(scales, self)

    def reset(self) -> None:
        """Collective: makes a poisoned layer usable again."""
        with self._lock:
            check(lib.megamoe_layer_reset(self.handle), self._handle)

    def close(self) -> None:
        """Collective: frees the workspace. Waits at most 10 s for ranks that do not come."""
        with self._lock:
            handle, self._handle = self._handle, ctypes.c_void_p()
            if handle:
                lib.megamoe_layer_destroy(handle)
            self._weights = self._last_call = None

    @property
    def on_cuda(self) -> bool:
        """Whether the layer runs on a GPU."""
        codes, scales = _structs.Tensor(), _structs.Tensor()
        check(lib.megamoe_layer_input_views(self.handle, ctypes.byref(codes), ctypes.byref(scales)), self._handle)
        return bool(codes.device)

    def _abandon(self) -> None:
        """Ends a layer that nobody will close: aside, since the other ranks may do so later on this very thread."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if not handle:
            return
        kept = (self.group, self._weights, self._last_call)

        def destroy(handle: ctypes.c_void_p, kept: Any) -> None:
            lib.megamoe_layer_destroy(handle)
            del kept

        if self.group.num_ranks == 1:
            destroy(handle, kept)
            return
        with contextlib.suppress(RuntimeError):  # no threads at the interpreter's end, when everything goes anyway
            threading.Thread(target=destroy, args=(handle, kept), name="megamoe-close", daemon=True).start()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._abandon()

    def __enter__(self) -> MoELayer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
