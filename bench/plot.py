#!/usr/bin/env python3
"""Makes the tables of H200 figures (all in docs/performance.md, a few in README.md) and docs/images/h200.svg.

They come from bench/results/h200.jsonl and bench/peer_h200.json. --check changes nothing and fails where one of the
three is not what the figures give.
"""

import argparse
import json
import math
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/h200.jsonl"
PEER = ROOT / "bench/peer_h200.json"
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs/performance.md"
IMAGE = ROOT / "docs/images/h200.svg"
BEGIN, END = "<!-- h200: begin (made by make figures) -->", "<!-- h200: end -->"
SLICES = ("flash-slice", "pro-slice")
MODELS = ("deepseek-v3", "qwen3-235b-a22b", "glm-4.5")
README_TOKENS = (1, 32, 128, 1024, 8192)
KEY = ("model", "ranks", "gpus", "tokens_per_rank", "protocol", "routing", "input")


def read_figures() -> dict[tuple, dict]:
    """The last line of each key counts."""
    figures = {}
    for number, line in enumerate(RESULTS.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            figures[tuple(row[key] for key in KEY)] = row
            float(row["median_us"]), float(row["floor_us"])
        except (KeyError, ValueError) as problem:
            raise SystemExit(f"{RESULTS}, line {number}: {type(problem).__name__}: {problem}") from problem
    return figures


def figure(
    figures: dict, model: str, tokens: int, protocol: str = "cold", routing: str = "uniform", given: str = "fp8"
) -> dict | None:
    return figures.get((model, 1, 1, tokens, protocol, routing, given))


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def tokens_of(figures: dict, models: tuple[str, ...]) -> list[int]:
    return sorted({row["tokens_per_rank"] for row in figures.values() if row["model"] in models and row["gpus"] == 1})


def median(row: dict | None) -> float | None:
    return None if row is None else row["median_us"]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join(["---:"] * len(header)) + " |"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def slice_table(figures: dict, peer: dict, model: str) -> list[str]:
    rows = []
    for tokens in tokens_of(figures, SLICES):
        cold = figure(figures, model, tokens)
        if cold is None:
            continue
        theirs = peer["median_us"][model].get(str(tokens))
        rows.append(
            [
                f"{tokens:,}",
                number(cold["median_us"]),
                number(theirs),
                "-" if theirs is None else f"{theirs / cold['median_us']:.2f}x",
                f"{number(cold['floor_us'])} ({cold['floor_kind'].replace('_', ' ')})",
                number(median(figure(figures, model, tokens, given="bf16"))),
                number(median(figure(figures, model, tokens, "steady"))),
                number(median(figure(figures, model, tokens, routing="zipf:1.0"))),
                number(median(figure(figures, model, tokens, routing="hot"))),
            ]
        )
    header = ["tokens", "cold", "peer", "peer / ours", "floor", "BF16 tokens", "steady", "zipf 1.0", "one hot expert"]
    return [f"**{model}**", "", *table(header, rows), ""] if rows else []


def model_table(figures: dict) -> list[str]:
    rows = [
        [
            model,
            f"{tokens:,}",
            number(cold["median_us"]),
            f"{number(cold['floor_us'])} ({cold['floor_kind'].replace('_', ' ')})",
            number(median(figure(figures, model, tokens, "steady"))),
        ]
        for model in MODELS
        for tokens in tokens_of(figures, (model,))
        if (cold := figure(figures, model, tokens))
    ]
    if not rows:
        return []
    return ["Whole layers on one GPU:", "", *table(["model", "tokens", "cold", "floor", "steady"], rows), ""]


def paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 150, break_long_words=False, break_on_hyphens=False)


def commits_of(rows: list[dict]) -> str:
    return ", ".join(sorted({row["commit"] for row in rows if row["commit"]})) or "not known"


def provenance(figures: dict, plain_only: bool = False) -> str:
    """Machine, days, and which commit gave which columns; `plain_only`: FP8 tokens and uniform routing."""
    used = [row for row in figures.values() if row["model"] in SLICES + MODELS]
    plain = [row for row in used if row["model"] in SLICES and (row["input"], row["routing"]) == ("fp8", "uniform")]
    others = [row for row in used if row["model"] in SLICES and row not in plain]
    models = [row for row in used if row["model"] in MODELS]
    used = plain if plain_only else used
    hardware = ", ".join(sorted({row["hardware"] for row in used}))
    dates = sorted({row["date"][:10] for row in used})
    days = dates[0] + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
    text = f"{hardware}; {days}; commit {commits_of(plain)}"
    for what, rows in (("BF16 tokens, zipf 1.0 and one hot expert", others), ("whole layers", models)):
        if not plain_only and rows and commits_of(rows) != commits_of(plain):
            text += f", {what} {commits_of(rows)}"
    return text


def performance_part(figures: dict, peer: dict) -> str:
    lines = [
        BEGIN,
        *paragraph(
            f"Microseconds a call, medians ({provenance(figures)}; `bench/measure.sh`, `bench/results/h200.jsonl`)."
            " Cold: L2 flushed, 100 ms idle, one call, FP8 tokens in place, uniform routing, unless the column says"
            " otherwise; steady: a graph of 20 calls over 3 sets of weights, replayed without a pause."
            f" Peer: {peer['name']}, {peer['source']}; {peer['protocol']}."
            " Floor: the weights of the experts that are hit at 4.46 TB/s, or both GEMMs alone at the rate of a bare"
            " grouped GEMM, whichever is longer."
        ),
        "",
        "![Time over tokens, with floors and the peer](images/h200.svg)",
        "",
    ]
    for model in SLICES:
        lines += slice_table(figures, peer, model)
    lines += model_table(figures)
    return "\n".join([*lines, END])


def readme_part(figures: dict, peer: dict) -> str:
    """Some rows of both slices, and the range of all of them beside the peer."""
    ratios = [
        (peer["median_us"][model][str(tokens)] / cold["median_us"], model, tokens)
        for model in SLICES
        for tokens in tokens_of(figures, SLICES)
        if (cold := figure(figures, model, tokens)) and str(tokens) in peer["median_us"][model]
    ]
    header = ["tokens", *(f"{model} {what}" for model in SLICES for what in ("cold", "peer", "floor"))]
    rows = []
    for tokens in README_TOKENS:
        row = [f"{tokens:,}"]
        for model in SLICES:
            cold = figure(figures, model, tokens)
            floor = None if cold is None else cold["floor_us"]
            row += [number(median(cold)), number(peer["median_us"][model].get(str(tokens))), number(floor)]
        rows.append(row)
    where = [f"{ratio:.2f}x at {tokens:,} tokens of {model}" for ratio, model, tokens in (min(ratios), max(ratios))]
    lines = [
        BEGIN,
        *paragraph(
            "Microseconds a call, median, cold caches, FP8 tokens, uniform routing"
            f" ({provenance(figures, plain_only=True)}). Peer: {peer['name']}. Peer / ours is between {where[0]} and"
            f" {where[1]}; below 1 the peer is faster. Floor: weights read once, or the bare GEMMs. How all of it was"
            " measured, every row, steady and skewed calls, whole layers: [docs/performance.md](docs/performance.md)."
        ),
        "",
        *table(header, rows),
        "",
        "![Time over tokens, with floors and the peer](docs/images/h200.svg)",
    ]
    return "\n".join([*lines, END])


class Panel:
    """One log-log plot of a slice."""

    WIDTH, HEIGHT, LEFT, TOP = 380, 300, 56, 34

    def __init__(self, offset: int, title: str, tokens: list[int], times: list[float]):
        self.offset, self.title = offset + self.LEFT, title
        self.tokens = tokens
        self.low, self.high = min(times) / 1.25, max(times) * 1.25

    def x(self, tokens: int) -> float:
        span = math.log(self.tokens[-1] / self.tokens[0]) or 1
        return self.offset + math.log(tokens / self.tokens[0]) / span * self.WIDTH

    def y(self, us: float) -> float:
        return self.TOP + self.HEIGHT * (1 - math.log(us / self.low) / math.log(self.high / self.low))

    def frame(self) -> list[str]:
        parts = [
            f'<text x="{self.offset + self.WIDTH / 2:.1f}" y="20" class="title">{self.title}</text>',
            f'<rect x="{self.offset}" y="{self.TOP}" width="{self.WIDTH}" height="{self.HEIGHT}" class="frame"/>',
        ]
        for tokens in self.tokens:
            x, label = self.x(tokens), f"{tokens // 1024}k" if tokens >= 1024 else f"{tokens}"
            parts.append(
                f'<line x1="{x:.1f}" y1="{self.TOP}" x2="{x:.1f}" y2="{self.TOP + self.HEIGHT}" class="grid"/>'
            )
            parts.append(f'<text x="{x:.1f}" y="{self.TOP + self.HEIGHT + 15}" class="tick">{label}</text>')
        for power in range(1, 5):
            for step in (1, 2, 5):
                us = step * 10**power
                if not self.low <= us <= self.high:
                    continue
                y = self.y(us)
                parts.append(
                    f'<line x1="{self.offset}" y1="{y:.1f}" x2="{self.offset + self.WIDTH}" y2="{y:.1f}" class="grid"/>'
                )
                parts.append(f'<text x="{self.offset - 6}" y="{y + 4:.1f}" class="left">{us:,}</text>')
        parts.append(
            f'<text x="{self.offset + self.WIDTH / 2:.1f}" y="{self.TOP + self.HEIGHT + 32}" class="tick">'
            "tokens on the rank</text>"
        )
        return parts

    def line(self, style: str, points: list[tuple[int, float]]) -> list[str]:
        path = " ".join(f"{self.x(tokens):.1f},{self.y(us):.1f}" for tokens, us in points)
        parts = [f'<polyline points="{path}" class="{style}"/>']
        if style != "floor":
            parts += [
                f'<circle cx="{self.x(t):.1f}" cy="{self.y(us):.1f}" r="2.5" class="{style} dot"/>' for t, us in points
            ]
        return parts


STYLE = """
text { font: 12px sans-serif; fill: #222; } .title { font-weight: bold; text-anchor: middle; font-size: 14px; }
.tick { text-anchor: middle; font-size: 10px; } .left { text-anchor: end; font-size: 10px; }
.frame { fill: #fff; stroke: #888; } .grid { stroke: #e4e4e4; } polyline { fill: none; stroke-width: 2; }
.ours { stroke: #0b6fb8; } .steady { stroke: #5fa8dc; stroke-dasharray: 2 3; } .peer { stroke: #c8641b; }
.floor { stroke: #555; stroke-dasharray: 6 4; } .dot { fill: #fff; stroke-width: 1.5; stroke-dasharray: none; }
""".strip()


def image(figures: dict, peer: dict) -> str:
    legend = [
        ("ours", "this project, cold, FP8 tokens"),
        ("steady", "this project, steady"),
        ("peer", f"{peer['name']}, cold, measured by us"),
        ("floor", "floor: weights read once, or bare GEMMs"),
    ]
    parts = []
    tokens = tokens_of(figures, SLICES)
    for index, model in enumerate(SLICES):
        curves = {
            "floor": [(t, row["floor_us"]) for t in tokens if (row := figure(figures, model, t))],
            "peer": [(int(t), us) for t, us in peer["median_us"][model].items() if int(t) in tokens],
            "steady": [(t, row["median_us"]) for t in tokens if (row := figure(figures, model, t, "steady"))],
            "ours": [(t, row["median_us"]) for t in tokens if (row := figure(figures, model, t))],
        }
        times = [us for curve in curves.values() for _, us in curve]
        if not times:
            continue
        panel = Panel(index * 450, f"{model}, one H200, microseconds a call", tokens, times)
        parts += panel.frame()
        for style, points in curves.items():
            parts += panel.line(style, points) if points else []
    for index, (style, text) in enumerate(legend):
        x, y = 56 + index % 2 * 450, 392 + index // 2 * 18
        parts.append(f'<polyline points="{x},{y} {x + 30},{y}" class="{style}"/>')
        parts.append(f'<text x="{x + 38}" y="{y + 4}">{text}</text>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 424" width="900" height="424">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something is out of date")
    options = parser.parse_args()
    figures, peer = read_figures(), json.loads(PEER.read_text())
    wanted = {IMAGE: image(figures, peer)}
    for path, part in ((README, readme_part(figures, peer)), (PERFORMANCE, performance_part(figures, peer))):
        text = path.read_text()
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            print(f"plot: {path} must hold one line '{BEGIN}' and one '{END}'")
            return 1
        wanted[path] = text.split(BEGIN)[0] + part + text.split(END)[1]
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if options.check:
        for path in stale:
            print(
                f"plot: {path.relative_to(ROOT)} is not what bench/results/h200.jsonl gives; make figures rewrites it"
            )
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
