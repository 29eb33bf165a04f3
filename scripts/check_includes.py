#!/usr/bin/env python3
"""Holds the direction of dependency: which folder may include which, and that each public header compiles alone."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLAIN = {"megamoe/shape.h", "megamoe/status.h", "megamoe/tensor.h"}  # public words without machinery
BACKEND = {
    "megamoe",
    "core",
    "protocol",
    "backends/backend.h",
    "backends/describe_schedule.h",
    "backends/error_text.h",
}
# folder: what it may include, as folders or single headers; itself always. The longest matching folder rules a file.
ALLOWED = {
    "include/megamoe": {"megamoe"},
    "src/core": PLAIN,
    "src/core/reference": PLAIN
    | {"core/integer.h", "core/portable.h"},  # the oracle shares nothing with what it judges
    "src/protocol": PLAIN | {"core"},
    "src/backends": {"megamoe", "core", "protocol"},  # what every backend provides
    "src/backends/cpu": BACKEND,
    "src/backends/sm90": BACKEND | {"backends/stream_owners.h", "backends/sm90/cost"},
    "src/backends/sm90/cost": {"megamoe/shape.h", "core/integer.h", "protocol/block_cut.h"},
    "src/comm": {"megamoe", "core"},
    "src/routing": {"megamoe", "core"},
    "src/io": {"megamoe", "core", "routing"},
    "src/api": {"megamoe", "core", "protocol", "backends", "comm", "io"},
    "src/capi": {"megamoe", "api", "io", "routing"},
    "bench": {"megamoe", "api", "core", "io", "backends/sm90/cost"},
    "cli": {"megamoe", "api", "io", "routing", "bench", "core/reference"},
    "examples": {"megamoe", "api", "io"},
}
# core and protocol compile with plain C++20 and nvcc and leave threads, clocks, files and CUDA to the machines below.
MACHINERY = re.compile(
    r"^(atomic|barrier|chrono|condition_variable|filesystem|fstream|future|iostream|latch|mutex|semaphore|shared_mutex"
    r"|stop_token|thread|cuda.*|cooperative_groups.*|nv/.*|pthread\.h|sched\.h|unistd\.h|fcntl\.h|sys/.*|netinet/.*"
    r"|immintrin\.h|x86intrin\.h|hwy/.*|fmt/.*|nlohmann/.*|CLI/.*)$"
)
ONE_FILE_ONLY = ("nlohmann/", "CLI/")  # slow to compile: included in one source file each, outside the tests
COMPILE_ALONE = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-xc++"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def folder_of(path: str) -> str | None:
    return max((folder for folder in ALLOWED if path.startswith(folder + "/")), key=len, default=None)


def allows(folder: str, header: str) -> bool:
    own = folder.removeprefix("src/").removeprefix("include/")
    target = folder_of("src/" + header) or folder
    if header.startswith(own + "/") and (target == folder or not target.startswith(folder + "/")):
        return True
    named = ALLOWED[folder]
    if "core/reference" not in named and folder != "src/core/reference" and header.startswith("core/reference/"):
        return False
    return any(header == name or header.startswith(name + "/") for name in named)


def main() -> int:
    errors, users = [], {name: [] for name in ONE_FILE_ONLY}
    files = [f for top in ("include", "src", "bench", "cli", "examples") for f in sorted((ROOT / top).rglob("*"))]
    sources = [f for f in files if f.suffix in {".h", ".cc", ".cu", ".cuh"}]
    for source in sources:
        path = source.relative_to(ROOT).as_posix()
        folder = folder_of(path)
        if folder is None:
            errors.append(f"{path}: its folder is not in this script's table of allowed edges; add it")
            continue
        for quote, header in INCLUDE.findall(source.read_text()):
            for name in ONE_FILE_ONLY:
                if header.startswith(name):
                    users[name].append(path)
            if quote == '"' and not allows(folder, header):
                errors.append(f'{path}: {folder} may not include "{header}"; allowed: {sorted(ALLOWED[folder])}')
            if quote == "<" and folder.startswith(("src/core", "src/protocol")) and MACHINERY.match(header):
                errors.append(f"{path}: {folder} may not include <{header}>: it must compile for every machine")
    for name, paths in users.items():
        if len(paths) > 1:
            errors.append(f"<{name}...> must be in one source file, is in {paths}")

    headers = sorted((ROOT / "include").rglob("*.h"))
    for header in headers:
        name = header.relative_to(ROOT / "include").as_posix()
        command = [*COMPILE_ALONE, "-"]
        result = subprocess.run(command, cwd=ROOT, input=f'#include "{name}"\n', capture_output=True, text=True)
        if result.returncode != 0:
            errors.append(f"include/{name} does not compile alone:\n{result.stderr}")

    print(
        "\n".join(errors) or f"includes: {len(sources)} files keep the direction; {len(headers)} headers compile alone"
    )
    return 1 if errors or not sources or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
