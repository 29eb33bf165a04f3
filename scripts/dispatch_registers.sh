#!/usr/bin/env bash
# Prints what the dispatch role spills when it is compiled with few registers: a line for each count, without and with
# the combine role that the same warp takes afterwards. Needs nvcc, no GPU.
#   scripts/dispatch_registers.sh [REGISTERS...]
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
nvcc=$(find_nvcc)
counts=("$@")
if ((${#counts[@]} == 0)); then counts=(32 40 56 88); fi
for combine in "" -DMEGAMOE_WITH_COMBINE; do
  for count in "${counts[@]}"; do
    printf '%s registers, dispatch%s: ' "$count" "${combine:+ and combine}"
    # shellcheck disable=SC2086
    "$nvcc" -std=c++20 -O3 -fmad=false -arch=sm_90a -I "$root/src" -I "$root/include" $combine -DMEGAMOE_REGISTERS="$count" \
      -Xptxas -v -cubin -o /dev/null "$root/tests/device/dispatch_registers.cu" 2>&1 |
      grep -oE '[0-9]+ bytes (stack frame|spill stores|spill loads)|Used [0-9]+ registers' | paste -sd, | sed 's/,/, /g'
  done
done
