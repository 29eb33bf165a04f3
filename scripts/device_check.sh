#!/usr/bin/env bash
# Runs every device check on a machine with one H200: one line a check, last line "N passed, N failed, N skipped".
#   scripts/device_check.sh [PROGRAM]     PROGRAM: megamoe_device_check, built with -DMEGAMOE_CUDA=ON
# Each check is a process of its own under a deadline, so that one that hangs does not take the others with it.
set -u
program=${1:-build/cuda/tests/megamoe_device_check}
seconds=${MEGAMOE_DEVICE_CHECK_SECONDS:-60}
if [ ! -x "$program" ]; then
  echo "device_check: $program must be the check program, and it is not there; build it with cmake -DMEGAMOE_CUDA=ON"
  exit 2
fi
passed=0 failed=0 skipped=0
report() { # report STATUS NAME TEXT
  printf '%-7s %s%s\n' "$1" "$2" "${3:+: $3}"
}
for name in $("$program" list); do
  output=$(timeout -s KILL "$seconds" "$program" run "=$name" 2>&1)
  code=$?
  line=$(printf '%s\n' "$output" | grep -m1 -E '^(ok|FAIL) ')
  if [ $code -eq 0 ] && [ -n "$line" ]; then
    passed=$((passed + 1))
    echo "$line"
  else
    failed=$((failed + 1))
    [ $code -eq 137 ] && line="FAIL $name: killed after $seconds s"
    echo "${line:-FAIL $name: exit code $code: $(printf '%s' "$output" | tail -1)}"
  fi
done
if command -v compute-sanitizer >/dev/null; then
  for name in oracle.m128.odd.77_tokens.1_ranks oracle.m64.odd.77_tokens.1_ranks refuses_bad_id; do
    if output=$(timeout -s KILL 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$program" run "=$name" 2>&1); then
      passed=$((passed + 1))
      report ok "memcheck.$name" "$(printf '%s\n' "$output" | grep -m1 'ERROR SUMMARY')"
    else
      failed=$((failed + 1))
      report FAIL "memcheck.$name" "$(printf '%s\n' "$output" | grep -E '=========' | head -3 | tr '\n' ' ')"
    fi
  done
else
  skipped=$((skipped + 1))
  report SKIPPED memcheck "compute-sanitizer is not installed"
fi
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
skipped=$((skipped + 1))
report SKIPPED two_gpus "needs ranks on two GPUs; this machine has $gpus, and the check program places all ranks on one"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
