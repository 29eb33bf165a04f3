"""The C interface's structs and functions for ctypes, as megamoe.h declares them; a test compares the two."""

from __future__ import annotations

import ctypes
from typing import Any

MAX_DIMS = 5

DTYPES: dict[str, int] = {
    "float32": 1,
    "bfloat16": 2,
    "float8_e4m3fn": 3,
    "float8_e8m0fnu": 4,
    "int32": 5,
    "int64": 6,
    "uint8": 7,
}
W13_LAYOUTS: dict[str, int] = {"gate_up": 1, "up_gate": 2, "interleaved_1": 3, "interleaved_8": 4}
SCALE_FORMATS: dict[str, int] = {"float32": 1, "ue8m0": 2}
SCORINGS: dict[str, int] = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 3}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    ]


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)


class LayerConfig(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("intermediate", ctypes.c_uint32),
        ("num_experts", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("max_tokens_per_rank", ctypes.c_uint32),
        ("swiglu_clamp", ctypes.c_float),
        ("num_threads", ctypes.c_uint32),
        ("timeout_ns", ctypes.c_uint64),
        ("backend", ctypes.c_char_p),
        ("num_shared_experts", ctypes.c_uint32),
        ("routed_scaling", ctypes.c_float),
        ("num_logical_experts", ctypes.c_uint32),
        ("num_reserved_sms", ctypes.c_uint32),
    ]


class ExpertWeights(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("w13_layout", ctypes.c_int32),
        ("scale_format", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
        ("w13", Tensor),
        ("w13_scale", Tensor),
        ("w2", Tensor),
        ("w2_scale", Tensor),
        ("shared_w13", Tensor),
        ("shared_w13_scale", Tensor),
        ("shared_w2", Tensor),
        ("shared_w2_scale", Tensor),
    ]


class ForwardArgs(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("scale_format", ctypes.c_int32),
        ("timeout_ns", ctypes.c_uint64),
        ("hidden_states", Tensor),
        ("hidden_states_scale", Tensor),
        ("topk_ids", Tensor),
        ("topk_weights", Tensor),
        ("output", Tensor),
        ("shared_weights", Tensor),
        ("expert_map", Tensor),
        ("cumulative_recv_counts", Tensor),
        ("active_ranks", ctypes.c_uint64 * 2),
        ("renormalize_weights", ctypes.c_uint32),
        ("is_asynchronous", ctypes.c_uint32),
        ("cuda_stream", ctypes.c_void_p),
        ("swiglu_clamp", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
    ]


class ProcessOptions(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("num_ranks", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("timeout_ns", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("rendezvous_dir", ctypes.c_char_p),
    ]


class CheckpointOptions(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("layer", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("num_ranks", ctypes.c_uint32),
        ("routed_only", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class CheckpointInfo(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("layer", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("intermediate", ctypes.c_uint32),
        ("num_experts", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("expert_begin", ctypes.c_uint32),
        ("expert_end", ctypes.c_uint32),
        ("num_shared_experts", ctypes.c_uint32),
        ("has_shared_weights", ctypes.c_uint32),
        ("has_router", ctypes.c_uint32),
        ("was_packed", ctypes.c_uint32),
        ("swiglu_clamp", ctypes.c_float),
        ("routed_scaling", ctypes.c_float),
        ("weight_on_input", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("model_type", ctypes.c_char_p),
        ("notes", ctypes.c_char_p),
    ]


class RouterConfig(Sized):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("scoring", ctypes.c_int32),
        ("num_experts", ctypes.c_uint32),
        ("top_k", ctypes.c_uint32),
        ("has_correction_bias", ctypes.c_uint32),
        ("num_groups", ctypes.c_uint32),
        ("topk_groups", ctypes.c_uint32),
        ("renormalize", ctypes.c_uint32),
        ("renormalize_epsilon", ctypes.c_float),
        ("scaling", ctypes.c_float),
        ("weight_on_input", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)

_Code = ctypes.c_int32
_Handle = ctypes.c_void_p
_HandleOut = ctypes.POINTER(ctypes.c_void_p)
_TensorIn = ctypes.POINTER(Tensor)

# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "megamoe_version": (ctypes.c_char_p, []),
    "megamoe_code_name": (ctypes.c_char_p, [_Code]),
    "megamoe_last_error": (ctypes.c_char_p, []),
    "megamoe_set_log_callback": (None, [LOG_CALLBACK, ctypes.c_void_p]),
    "megamoe_thread_group_create": (_Code, [ctypes.c_uint32, _HandleOut]),
    "megamoe_process_group_join": (_Code, [ctypes.POINTER(ProcessOptions), _HandleOut]),
    "megamoe_cuda_thread_group_create": (_Code, [ctypes.c_uint32, ctypes.POINTER(ctypes.c_int32), _HandleOut]),
    "megamoe_cuda_process_group_join": (_Code, [ctypes.POINTER(ProcessOptions), ctypes.c_int32, _HandleOut]),
    "megamoe_group_rank": (ctypes.c_uint32, [_Handle]),
    "megamoe_group_num_ranks": (ctypes.c_uint32, [_Handle]),
    "megamoe_group_destroy": (None, [_Handle]),
    "megamoe_workspace_bytes": (
        _Code,
        [ctypes.POINTER(LayerConfig), ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "megamoe_layer_create": (_Code, [ctypes.POINTER(LayerConfig), _Handle, _HandleOut]),
    "megamoe_layer_load_weights": (_Code, [_Handle, ctypes.POINTER(ExpertWeights)]),
    "megamoe_layer_prepare_weights": (_Code, [_Handle, ctypes.POINTER(ExpertWeights), _HandleOut]),
    "megamoe_layer_use_weights": (_Code, [_Handle, _Handle]),
    "megamoe_weights_destroy": (None, [_Handle]),
    "megamoe_layer_forward": (_Code, [_Handle, ctypes.POINTER(ForwardArgs)]),
    "megamoe_layer_finish": (_Code, [_Handle]),
    "megamoe_layer_input_views": (_Code, [_Handle, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor)]),
    "megamoe_layer_reset": (_Code, [_Handle]),
    "megamoe_layer_error": (ctypes.c_char_p, [_Handle]),
    "megamoe_layer_destroy": (None, [_Handle]),
    "megamoe_checkpoint_load": (_Code, [ctypes.c_char_p, ctypes.POINTER(CheckpointOptions), _HandleOut]),
    "megamoe_checkpoint_describe": (_Code, [_Handle, ctypes.POINTER(CheckpointInfo)]),
    "megamoe_checkpoint_weights": (_Code, [_Handle, ctypes.POINTER(ExpertWeights)]),
    "megamoe_checkpoint_router": (_Code, [_Handle, ctypes.POINTER(RouterConfig)]),
    "megamoe_checkpoint_route": (_Code, [_Handle, _TensorIn, _TensorIn, _TensorIn, _TensorIn]),
    "megamoe_checkpoint_destroy": (None, [_Handle]),
    "megamoe_choose_experts": (
        _Code,
        [ctypes.POINTER(RouterConfig), _TensorIn, _TensorIn, _TensorIn, _TensorIn],
    ),
}
