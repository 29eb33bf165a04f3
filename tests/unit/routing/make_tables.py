#!/usr/bin/env python3
"""Writes the routing tables that router_test.cc reads: a second implementation, in numpy and double precision.

Usage: make_tables.py          writes tables.txt beside this file
       make_tables.py --check  exit 1 where tables.txt is not what this program writes, 77 without numpy
"""

import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("numpy is not installed; scripts/test.sh makes an environment that has it")
    sys.exit(77)

TABLES = Path(__file__).resolve().parent / "tables.txt"
SCORING = {
    "softmax": lambda z: np.exp(z - z.max(-1, keepdims=True)) / np.exp(z - z.max(-1, keepdims=True)).sum(-1)[:, None],
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "sqrtsoftplus": lambda z: np.sqrt(np.logaddexp(0, z)),
}


def top(values: np.ndarray, count: int) -> np.ndarray:
    """Columns of the highest values of each row; a stable sort keeps equal ones in the order of their index."""
    return np.argsort(-values, axis=-1, kind="stable")[:, :count]


def route(z, top_k, scoring, bias=None, groups=1, topk_groups=1, renormalize=False, epsilon=0.0, scaling=1.0):
    z = z.astype(np.float64)
    scores = SCORING[scoring](z)
    choice = z if bias is None and groups == topk_groups else scores if bias is None else scores + bias
    if topk_groups < groups:
        by_group = np.sort(choice.reshape(len(z), groups, -1), axis=-1)[:, :, -2:].sum(-1)
        kept = np.zeros_like(by_group, dtype=bool)
        np.put_along_axis(kept, top(by_group, topk_groups), True, axis=-1)
        choice = np.where(np.repeat(kept, z.shape[1] // groups, axis=-1), choice, -np.inf)
    ids = top(choice, top_k)
    weights = np.take_along_axis(scores, ids, axis=-1)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdims=True) + epsilon)
    return ids, weights * scaling


def logits(rng, tokens, experts, tied):
    """Random logits; `tied` ones are multiples of a half, so that most of them occur twice."""
    z = rng.normal(0, 2, (tokens, experts))
    return (np.round(z * 2) / 2 if tied else z).astype(np.float32)


def deepseek(top_k: int, scaling: float) -> dict:
    return {"top_k": top_k, "renormalize": True, "epsilon": 1e-20, "scaling": scaling}


def cases():
    rng = np.random.default_rng(20)
    # name, experts, settings
    plain = [
        ("softmax", 8, {"top_k": 2, "scoring": "softmax"}),
        ("softmax renormalised (Mixtral, Qwen3)", 16, {"top_k": 4, "scoring": "softmax", "renormalize": True}),
        ("softmax of every expert", 4, {"top_k": 4, "scoring": "softmax"}),
        ("sigmoid", 8, {"top_k": 3, "scoring": "sigmoid"}),
        ("sigmoid renormalised", 8, {"top_k": 3, "scoring": "sigmoid", "renormalize": True, "scaling": 1.5}),
        ("sigmoid of one (Llama-4)", 16, {"top_k": 1, "scoring": "sigmoid"}),
        ("sqrtsoftplus", 8, {"top_k": 2, "scoring": "sqrtsoftplus"}),
        ("top-1", 5, {"top_k": 1, "scoring": "softmax", "renormalize": True}),
    ]
    biased = [
        (
            "DeepSeek-V3",
            16,
            {
                "top_k": 4,
                "scoring": "sigmoid",
                "groups": 4,
                "topk_groups": 2,
                "renormalize": True,
                "epsilon": 1e-20,
                "scaling": 2.5,
            },
        ),
        (
            "GLM: one group",
            16,
            {"scoring": "sigmoid"} | deepseek(4, 1.0),
        ),
        ("MiniMax-M2", 16, {"top_k": 4, "scoring": "sigmoid", "renormalize": True}),
        ("not renormalised", 12, {"top_k": 3, "scoring": "sigmoid", "groups": 3, "topk_groups": 1, "scaling": 2.0}),
        (
            "DeepSeek-V4",
            16,
            {"scoring": "sqrtsoftplus"} | deepseek(6, 1.5),
        ),
        ("32 slots", 64, {"top_k": 32, "scoring": "sigmoid", "groups": 8, "topk_groups": 4, "renormalize": True}),
    ]
    for name, experts, settings in plain + biased:
        for tied in (False, True):
            z = logits(rng, 6, experts, tied)
            bias = None
            if (name, experts, settings) in biased:
                # Coarse enough to change the choice; of ties, equal for pairs of experts.
                bias = np.repeat(rng.integers(-4, 5, (experts + 1) // 2) / 16, 2)[:experts]
                bias = bias if tied else bias + rng.normal(0, 0.05, experts)
                bias = bias.astype(np.float32).astype(np.float64)
            yield name + (", ties" if tied else ""), z, bias, settings
    z = logits(rng, 3, 8, False)
    z[0] = 0.0  # all equal
    z[1] = [100, 90, 95, -100, 80, 99, 0, 1]  # far beyond where sigmoid rounds to 1
    z[2] = [-30, -29, -28, -27, -31, -32, -33, -34]
    yield "far from zero, sigmoid", z, None, {"top_k": 3, "scoring": "sigmoid"}
    yield "far from zero, softmax", z, None, {"top_k": 3, "scoring": "softmax", "renormalize": True}
    yield "far from zero, sqrtsoftplus", z, None, {"top_k": 3, "scoring": "sqrtsoftplus"}


def text() -> str:
    keys = ("top_k", "groups", "topk_groups", "renormalize", "epsilon", "scaling")
    defaults = {"groups": 1, "topk_groups": 1, "renormalize": False, "epsilon": 0.0, "scaling": 1.0}
    lines = ["# Written by make_tables.py. A case: its name; scoring, tokens, experts, bias (0 or 1) and the settings"]
    lines.append(f"# {', '.join(keys)}; the bias; then logits, ids and weights of each token.")
    for name, z, bias, settings in cases():
        ids, weights = route(z, bias=bias, **settings)
        values = [int(v) if isinstance(v := (defaults | settings)[key], bool) else v for key in keys]
        lines.append(f"case {name}")
        lines.append(" ".join(map(str, [settings["scoring"], *z.shape, int(bias is not None), *values])))
        if bias is not None:
            lines.append(" ".join(f"{value:.9g}" for value in bias))
        for token in range(len(z)):
            lines.append(" ".join(f"{value:.9g}" for value in z[token]))
            lines.append(" ".join(map(str, ids[token])))
            lines.append(" ".join(f"{value:.9g}" for value in weights[token]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        # Another numpy may differ in a last digit: the tables are compared as numbers.
        def word(text: str) -> float | str:
            try:
                return float(text)
            except ValueError:
                return text

        def words(content: str) -> list:
            return [[word(w) for w in line.split()] for line in content.splitlines()]

        def near(a: float | str, b: float | str) -> bool:
            return a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-7 * abs(a))

        mine, kept = words(text()), words(TABLES.read_text())
        same = len(mine) == len(kept) and all(
            len(a) == len(b) and all(near(x, y) for x, y in zip(a, b, strict=True))
            for a, b in zip(mine, kept, strict=True)
        )
        print(f"{len(mine)} lines, {'as kept' if same else 'not as kept: run make_tables.py'}")
        sys.exit(0 if same else 1)
    TABLES.write_text(text())
