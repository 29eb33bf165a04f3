#!/usr/bin/env python3
"""Holds what the compiler made of every kernel instance to a budget: registers, stack, spills, register bank conflicts
of the promotion, FP8 multiplies.

Usage: check_kernel_budget.py OBJECTS BUDGET [--cuobjdump PROGRAM]
OBJECTS is the folder of the instances' object files (NAME.cu.o), BUDGET a JSON file with one entry for each.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

# What must not grow, and what must not shrink.
AT_MOST = ("registers", "stack_bytes", "spill_instructions", "bank_conflicts")
AT_LEAST = ("fp8_multiplies",)


def run(program: str, *arguments: str) -> str:
    # cuobjdump calls nvdisasm, which lies beside it.
    environment = dict(os.environ, PATH=f"{Path(program).resolve().parent}:{os.environ.get('PATH', '')}")
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout


def bank_conflicts(code: str) -> int:
    """Multiply-adds that add into a register and whose three sources lie in one of the two register banks (even, odd)
    and none of them in the operand cache of the instruction before: each costs the issue slot of another one."""
    conflicts = 0
    previous: list[tuple[str, str]] = []
    for instruction in re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);", code):
        match = re.match(r"FFMA R(\d+), R(\d+)(\.reuse)?, R(\d+)(\.reuse)?, R(\d+)(\.reuse)?", instruction)
        if match is None:
            previous = []
            continue
        sources = [(match[i], match[i + 1]) for i in (2, 4, 6)]
        is_cached = any(old[1] and old[0] == new[0] for old, new in zip(previous, sources))
        if match[1] == match[6] and len({int(register) % 2 for register, _ in sources}) == 1 and not is_cached:
            conflicts += 1
        previous = sources
    return conflicts


def measure(cuobjdump: str, path: Path) -> dict[str, int]:
    usage = re.findall(r"Function (\S*moe_layer\S*):\s+REG:(\d+) STACK:(\d+)", run(cuobjdump, "-res-usage", str(path)))
    if len(usage) != 1:
        raise ValueError(f"{path}: must hold one kernel moe_layer, found {len(usage)}")
    code = run(cuobjdump, "-sass", "-fun", usage[0][0], str(path))
    return {
        "registers": int(usage[0][1]),
        "stack_bytes": int(usage[0][2]),
        "spill_instructions": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "bank_conflicts": bank_conflicts(code),
        "fp8_multiplies": len(re.findall(r"\bQGMMA\b", code)),
    }


def problems(name: str, found: dict[str, int], budget: dict) -> list[str]:
    wrong = []
    for key in AT_MOST:
        if found[key] > budget[key]:
            wrong.append(f"{name}: {key} must be at most {budget[key]}, got {found[key]}")
    for key in AT_LEAST:
        if found[key] < budget[key]:
            wrong.append(f"{name}: {key} must be at least {budget[key]}, got {found[key]}")
    allows = ("stack_bytes", "spill_instructions", "bank_conflicts")
    if any(budget[key] for key in allows) and not budget.get("reason"):
        wrong.append(f"{name}: a budget that allows spills or bank conflicts must give its reason")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("objects", type=Path)
    parser.add_argument("budget", type=Path)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    options = parser.parse_args()
    budgets = json.loads(options.budget.read_text())
    objects = {path.name.removesuffix(".cu.o"): path for path in sorted(options.objects.glob("*.cu.o"))}
    wrong = [f"{name}: has no budget; add it to {options.budget}" for name in objects if name not in budgets]
    wrong += [
        f"{name}: has a budget, but no object file in {options.objects}" for name in budgets if name not in objects
    ]
    for name, path in objects.items():
        found = measure(options.cuobjdump, path)
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()))
        if name in budgets:
            wrong += problems(name, found, budgets[name])
    print("\n".join(wrong) or f"kernel budget: {len(objects)} instances are within it")
    return 1 if wrong or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
