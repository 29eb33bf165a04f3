#!/usr/bin/env bash
# Compiles every header of src/core and src/protocol for sm_90a: what both machines share must be accepted by nvcc.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

nvcc=$(find_nvcc)
mapfile -t headers < <(project_files 'src/core/*.h' 'src/protocol/*.h' | grep -v '^src/core/reference/')
if ((${#headers[@]} == 0)); then
  echo "nvcc: git lists no headers under src/core and src/protocol; run inside a git checkout" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include "%s"\n' "${headers[@]#src/}" >"$work/shared_headers.cu"
"$nvcc" -std=c++20 -gencode arch=compute_90a,code=sm_90a -Werror all-warnings -Xcompiler=-Wall,-Wextra \
  -Iinclude -Isrc -c "$work/shared_headers.cu" -o "$work/shared_headers.o"
echo "nvcc: ${#headers[@]} headers of core and protocol compile for sm_90a"
