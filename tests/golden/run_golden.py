#!/usr/bin/env python3
"""Runs cases of the command line and compares them with expected/; --update rewrites the expected files."""

import argparse
import difflib
import json
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from behaviour import BEHAVIOUR_CASES
from cases import BAD_CASES, JSON_CASES, TEXT_CASES
from process_cases import PROCESS_CASES
from tool import Answer, Program, make_files

RULE_CASES = BEHAVIOUR_CASES | PROCESS_CASES
EXPECTED = Path(__file__).resolve().parent / "expected"


def normalised(text: str, folder: Path) -> str:
    """Times, their shares and error figures become N; everything else must stay as it is."""
    text = text.replace(str(folder), "TMP")
    text = re.sub(r" *\b\d+\.\d+ (us|ms|s)\b", " N s", text)
    text = re.sub(r" +\d+\.\d %", " N %", text)
    text = re.sub(r"\b\d\.\d\de[-+]\d\d\b", "N", text)
    return re.sub(r"(cosine) \d\.\d+", r"\1 N", text)


def as_text(answer: Answer, folder: Path) -> str:
    parts = [f"exit {answer.code}\n"]
    for name, text in (("stdout", answer.stdout), ("stderr", answer.stderr)):
        parts.append(f"--- {name}\n{normalised(text, folder)}")
    return "".join(parts)


def outline(value: object, path: str = "") -> list[str]:
    """One line for each key, with the type of its value; of an array, its first element stands for all."""
    if isinstance(value, dict):
        lines = [f"{path or '.'}: object"]
        for key, item in value.items():
            lines += outline(item, f"{path}.{key}")
        return lines
    if isinstance(value, list):
        return [f"{path}: array", *(outline(value[0], f"{path}[]") if value else [])]
    kind = {str: "text", bool: "boolean", type(None): "null"}.get(type(value), "number")
    return [f"{path}: {kind}"]


def json_outline(answer: Answer, arguments: list[str]) -> str:
    found = answer.json()
    head = {key: found[key] for key in ("schema_version", "command", "status")}
    lines = outline(found)
    if arguments[0] in ("doctor", "bench"):  # What a machine or a build lacks is null: keys only.
        lines = sorted({line.split(":")[0] for line in lines if ".gpu." not in line})
    return f"exit {answer.code}\n{json.dumps(head)}\n" + "\n".join(lines) + "\n"


def bad_input(program: Program, arguments: list[str], folder: Path) -> str:
    plain = program.run(arguments)
    problems = []
    if plain.code != 2 or plain.stdout:
        problems.append(f"expected exit 2 and an empty stdout, got exit {plain.code} and {plain.stdout!r}")
    if not re.fullmatch(r"error: [^\n]+\n", plain.stderr):
        problems.append(f"expected one sentence on stderr, got {plain.stderr!r}")
    answer = program.run([*arguments, "--json"])
    found = answer.json()
    if answer.code != 2 or answer.stderr or found["status"] != "bad_input" or found["schema_version"] != 1:
        problems.append(f"with --json: {answer}")
    # Without a value before it, --json would be taken as the value; that case has its own message.
    if f"error: {found['error']['message']}\n" != plain.stderr and arguments[-1:] != ["--ranks"]:
        problems.append(f"--json says {found['error']['message']!r}")
    if problems:
        raise AssertionError("\n".join(problems))
    return as_text(plain, folder)


def run_case(name: str, program: Program, folder: Path, update: bool) -> str | None:
    """None where the case holds, else what is wrong."""

    def real(arguments: list[str]) -> list[str]:
        return [
            argument.replace("TMP", str(folder)) if argument.startswith("TMP/") else argument for argument in arguments
        ]

    try:
        if name in RULE_CASES:
            RULE_CASES[name](program, folder)
            return None
        if name in TEXT_CASES:
            text = as_text(program.run(real(TEXT_CASES[name])), folder)
        elif name in JSON_CASES:
            text = json_outline(program.run(real(JSON_CASES[name])), JSON_CASES[name])
        else:
            text = bad_input(program, real(BAD_CASES[name]), folder)
    except (AssertionError, KeyError, ValueError) as problem:
        return f"{type(problem).__name__}: {problem}"
    path = EXPECTED / f"{name}.txt"
    if update:
        path.write_text(text)
        return None
    if not path.exists():
        return f"{path} is missing; see --update"
    expected = path.read_text()
    if text == expected:
        return None
    lines = difflib.unified_diff(expected.splitlines(True), text.splitlines(True), "expected", "got")
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megamoe", help="the program under test")
    parser.add_argument("--update", action="store_true", help="rewrite the expected files")
    parser.add_argument("--list", action="store_true", help="print the names of all cases")
    parser.add_argument("case", nargs="*", help="names of cases (default: all)")
    options = parser.parse_args()
    every_case = [*TEXT_CASES, *BAD_CASES, *JSON_CASES, *RULE_CASES]
    if len(set(every_case)) != len(every_case):
        parser.error("two cases have the same name")
    if options.list:
        print("\n".join(every_case))
        return 0
    if not options.megamoe:
        parser.error("--megamoe PATH is needed")
    unknown = set(options.case) - set(every_case)
    if unknown:
        parser.error(f"no case is called {sorted(unknown)}")
    if options.update:
        EXPECTED.mkdir(exist_ok=True)
    program = Program(str(Path(options.megamoe).resolve()))
    failures = 0
    for name in options.case or every_case:
        with tempfile.TemporaryDirectory(prefix="megamoe_golden_") as folder:
            make_files(Path(folder))
            problem = run_case(name, program, Path(folder), options.update)
        if problem is not None:
            failures += 1
            print(f"{name}: FAILED\n{problem}")
    print(f"{len(options.case or every_case) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
