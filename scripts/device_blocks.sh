#!/usr/bin/env bash
# Runs the whole MoE block of every fixture that holds its FP32 output on a GPU: one line a run, last line
# "N passed, N failed". Usage: scripts/device_blocks.sh [MEGAMOE]     (built with -DMEGAMOE_CUDA=ON)
set -u
megamoe=${1:-build/cuda/megamoe}
if [ ! -x "$megamoe" ]; then
  echo "device_blocks: $megamoe must be the command line, and it is not there; build it with cmake -DMEGAMOE_CUDA=ON"
  exit 2
fi
passed=0 failed=0
for inputs in tests/fixtures/*/moe_layer_io.safetensors; do
  grep -aq '"output_fp32"' "$inputs" || continue
  folder=$(dirname "$inputs")
  for ranks in 1 2; do
    if output=$(timeout -s KILL 60 "$megamoe" run --checkpoint "$folder" --layer 1 --inputs "$inputs" --ranks $ranks \
      --device cuda --part block 2>&1); then
      passed=$((passed + 1)) status=ok
    else
      failed=$((failed + 1)) status=FAIL
    fi
    echo "$status $(basename "$folder") $ranks ranks: $(printf '%s\n' "$output" | grep -E '^(compare|error)' | tail -1)"
  done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
