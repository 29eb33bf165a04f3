"""From router logits to the experts of each token: every published rule is a choice of these few settings."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

from megamoe import _structs
from megamoe._arguments import choice
from megamoe._errors import InvalidArgumentError
from megamoe._library import check, lib
from megamoe._tensors import ArrayLike, view_of


class Routing(NamedTuple):
    """What a layer is called with; T tokens, K slots, m shared experts."""

    topk_ids: Any
    """[T, K] int64; the highest score first."""
    topk_weights: Any
    """[T, K] float32; the router's scaling factor is in them."""
    shared_weights: Any = None
    """[T, m] float32 where a gate weighs the shared experts; None: they weigh 1."""


@dataclass(frozen=True)
class Router:
    """One router. The experts of a token are the `top_k` with the highest score (plus correction bias, where there is
    one) inside the chosen groups; their weights come from the scores without the bias. Ties go to the lowest index.

    `scoring`: "softmax" (over all experts), "sigmoid" or "sqrtsoftplus". `num_groups`: equal runs of experts, ranked by
    the sum of their best two; `topk_groups`: how many of them experts may come from. `renormalize`: whether the weights
    of a token are divided by their sum + `renormalize_epsilon`. `scaling` multiplies the weights, last.
    `weight_on_input`: the weight belongs on the input of the routed experts instead of their output (Llama-4).
    """

    top_k: int
    scoring: str
    has_correction_bias: bool = False
    num_groups: int = 1
    topk_groups: int = 1
    renormalize: bool = False
    renormalize_epsilon: float = 0.0
    scaling: float = 1.0
    weight_on_input: bool = False

    def choose_experts(self, logits: ArrayLike, correction_bias: ArrayLike | None = None) -> Routing:
        """`logits`: [T, E] float32 in host memory. `correction_bias`: [E] float32, where the router has one.

        Ids are distinct and in range whatever the logits are (NaN scores come last).
        """
        tokens = view_of(logits, "logits")
        if len(tokens.shape) != 2:
            raise InvalidArgumentError(
                f"megamoe.routing: logits must have shape [tokens, experts], got {list(tokens.shape)}; add a dimension"
            )
        bias = None if correction_bias is None else view_of(correction_bias, "correction_bias")
        config = self._struct(tokens.shape[1])
        ids, weights = new_routing(tokens.shape[0], int(config.top_k))
        check(
            lib.megamoe_choose_experts(
                ctypes.byref(config),
                ctypes.byref(tokens.tensor),
                None if bias is None else ctypes.byref(bias.tensor),
                ctypes.byref(view_of(ids, "topk_ids").tensor),
                ctypes.byref(view_of(weights, "topk_weights").tensor),
            )
        )
        return Routing(ids, weights)

    def _struct(self, num_experts: int) -> Any:
        numbers = {
            "num_experts": num_experts, "top_k": self.top_k, "num_groups": self.num_groups,
            "topk_groups": self.topk_groups,
        }  # fmt: skip
        for name, number in numbers.items():
            if not 1 <= number < 2**32:  # in the C interface 0 means "not given"
                raise InvalidArgumentError(f"megamoe.routing: {name} must be at least 1, got {number}")
        if self.scaling == 0:
            raise InvalidArgumentError("megamoe.routing: scaling must not be 0, which would drop the experts, got 0")
        return _structs.RouterConfig(
            scoring=choice(_structs.SCORINGS, self.scoring, "megamoe.routing: scoring"),
            has_correction_bias=int(self.has_correction_bias),
            renormalize=int(self.renormalize),
            renormalize_epsilon=self.renormalize_epsilon,
            scaling=self.scaling,
            weight_on_input=int(self.weight_on_input),
            **numbers,
        )


def router_of(config: Any) -> Router:
    """The Router of a struct of the C interface."""
    scorings = {number: name for name, number in _structs.SCORINGS.items()}
    return Router(
        top_k=config.top_k,
        scoring=scorings[config.scoring],
        has_correction_bias=bool(config.has_correction_bias),
        num_groups=config.num_groups,
        topk_groups=config.topk_groups,
        renormalize=bool(config.renormalize),
        renormalize_epsilon=config.renormalize_epsilon,
        scaling=config.scaling,
        weight_on_input=bool(config.weight_on_input),
    )


def new_routing(num_tokens: int, top_k: int) -> tuple[Any, Any]:
    """Uninitialised ids and weights."""
    import numpy as np

    # A top_k that the library refuses must not be allocated first.
    columns = min(top_k, 1024)
    return np.empty((num_tokens, columns), np.int64), np.empty((num_tokens, columns), np.float32)


def softmax_topk(logits: ArrayLike, top_k: int, *, renormalize: bool) -> Routing:
    """Softmax over all experts, then the best (Mixtral, Qwen). `logits`: [T, E] float32."""
    return Router(top_k, "softmax", renormalize=renormalize).choose_experts(logits)


def sigmoid_topk(
    logits: ArrayLike, top_k: int, *, renormalize: bool, correction_bias: ArrayLike | None = None
) -> Routing:
    """Sigmoid of each logit, then the best (MiniMax-M2 with a bias). `logits`: [T, E], bias: [E], float32."""
    router = Router(top_k, "sigmoid", has_correction_bias=correction_bias is not None, renormalize=renormalize)
    return router.choose_experts(logits, correction_bias)


def grouped_topk(
    logits: ArrayLike,
    correction_bias: ArrayLike,
    top_k: int,
    *,
    num_groups: int,
    topk_groups: int,
    renormalize: bool,
    scaling: float,
) -> Routing:
    """Sigmoid plus bias, inside the best groups (DeepSeek-V3, Kimi-K2, GLM). `logits`: [T, E], bias: [E], float32."""
    router = Router(
        top_k, "sigmoid", has_correction_bias=True, num_groups=num_groups, topk_groups=topk_groups,
        renormalize=renormalize, renormalize_epsilon=1e-20, scaling=scaling,
    )  # fmt: skip
    return router.choose_experts(logits, correction_bias)


def sqrtsoftplus_topk(logits: ArrayLike, correction_bias: ArrayLike, top_k: int, *, scaling: float) -> Routing:
    """sqrt(softplus) plus bias, renormalised (DeepSeek-V4). `logits`: [T, E], bias: [E], float32."""
    router = Router(
        top_k, "sqrtsoftplus", has_correction_bias=True, renormalize=True, renormalize_epsilon=1e-20, scaling=scaling
    )
    return router.choose_experts(logits, correction_bias)


__all__ = ["Router", "Routing", "grouped_topk", "sigmoid_topk", "softmax_topk", "sqrtsoftplus_topk"]
