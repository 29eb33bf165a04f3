#!/usr/bin/env bash
# Formats, or only checks, every C++, CUDA and Python source. Usage: scripts/format.sh --write|--check
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

mapfile -t cxx < <(project_files '*.h' '*.cc' '*.cu' '*.cuh')
if ((${#cxx[@]} == 0)); then
  echo "format: git lists no source files in $root; run inside a git checkout" >&2
  exit 1
fi
case "${1:-}" in
  --write)
    clang-format-14 -i "${cxx[@]}"
    make_venv
    build/venv/bin/ruff format --quiet .
    build/venv/bin/ruff check --quiet --fix .
    ;;
  --check)
    unformatted=$(clang-format-14 --dry-run "${cxx[@]}" 2>&1 | sed -n 's/:.*\[-Wclang-format-violations\]$//p' | sort | uniq -c)
    if [[ -n $unformatted ]]; then
      printf 'format: places to change in each file; "make format" rewrites them\n%s\n' "$unformatted"
      exit 1
    fi
    echo "format: ${#cxx[@]} files are formatted"
    ;;
  *)
    echo "format: the mode must be --write or --check, got '${1:-}'" >&2
    exit 2
    ;;
esac
