#!/usr/bin/env python3
"""Checks what is tracked: no build residue, no oversized source, text that ends and reads as text should."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_SOURCE_LINES = 500
MAX_FILE_BYTES = 8 << 20
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake"}
RESIDUE = re.compile(
    r"(^|/)(build|CMakeFiles|__pycache__|\.cache|\.venv|Testing|_deps)/|(^|/)(CMakeCache\.txt|compile_commands\.json|core)$"
    r"|\.(o|a|so|pyc|gcda|gcno|profraw|ninja|log|orig|rej|swp|tmp|bak)$|~$"
)


def problems(path: str) -> list[str]:
    found = []
    if RESIDUE.search(path):
        found.append("is build residue; remove it and ignore it")
    data = (ROOT / path).read_bytes()
    if data.startswith(b"\x7fELF"):
        found.append("is a compiled program")
    if len(data) > MAX_FILE_BYTES:
        found.append(f"has {len(data)} bytes, more than {MAX_FILE_BYTES}")
    if b"\0" in data or path.startswith(("tests/fixtures/", "tests/fuzz/corpus/")):
        return found
    lines = data.decode("utf-8", errors="replace").split("\n")
    if data and not data.endswith(b"\n"):
        found.append("does not end in a newline")
    for number, line in enumerate(lines, 1):
        if re.match(r"(<<<<<<<|>>>>>>>) ", line):
            found.append(f"line {number} is a merge marker")
        if line != line.rstrip() and not path.startswith(("tests/fuzz/", "tests/golden/")):
            found.append(f"line {number} has trailing space or a carriage return")
    if Path(path).suffix in SOURCE_SUFFIXES:
        if len(lines) - 1 > MAX_SOURCE_LINES:
            found.append(f"has {len(lines) - 1} lines, more than {MAX_SOURCE_LINES}; split it by reason to exist")
        if not lines[0].startswith(("//", "/*", "#", '"""')):
            found.append("does not begin with a comment that says why the file exists")
    return found


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    paths = sorted({path for path in listed.stdout.decode().split("\0") if path and (ROOT / path).is_file()})
    errors = [f"{path}: {problem}" for path in paths for problem in problems(path)]
    print("\n".join(errors) or f"tree: {len(paths)} files are clean")
    return 1 if errors or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
