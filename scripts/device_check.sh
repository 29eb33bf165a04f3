#!/usr/bin/env bash
# Runs every device check on a machine with one H200: one line a check, last line "N passed, N failed, N skipped".
#   scripts/device_check.sh [FOLDER]   FOLDER: what scripts/device_pack.sh made, or the build folder (build/sm90)
# Groups of checks are processes of their own under a deadline, so that one that hangs or dies does not take the others
# with it; what it left without a verdict is run again, each check alone.
# Environment: MEGAMOE_FIXTURES (FOLDER/fixtures, or tests/fixtures), MEGAMOE_DEVICE_CHECK_JOBS (3) processes at a time,
# MEGAMOE_DEVICE_CHECK_RAW a folder for racecheck's own words.
set -u
folder=${1:-build/sm90}
jobs=${MEGAMOE_DEVICE_CHECK_JOBS:-3}
tests=$folder/tests
program=$tests/megamoe_device_check
if [ ! -x "$program" ]; then
  echo "device_check: $program must be there, and it is not; build with scripts/device_pack.sh FOLDER, and name FOLDER"
  exit 2
fi
if [ -z "${MEGAMOE_FIXTURES:-}" ]; then
  MEGAMOE_FIXTURES=$folder/fixtures
  [ -d "$MEGAMOE_FIXTURES" ] || MEGAMOE_FIXTURES=tests/fixtures
fi
export MEGAMOE_FIXTURES
[ -d "$folder/lib" ] && export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
suites="layer_smoke_test layer_protocol_test layer_sizes_test layer_numbers_test layer_formats_test layer_extras_test"

# one_line TEXT: what a report can hold.
one_line() { printf '%s' "$1" | tr '\n' ' ' | cut -c1-600; }

# check_group GROUP: every check of the program called GROUP or GROUP.something.
check_group() {
  local group=$1 output code line
  output=$(timeout -s KILL 120 "$program" run "^$group" 2>&1)
  printf '%s\n' "$output" | grep -E '^(ok  |FAIL) [a-z0-9_.-]+: '
  grep -E "^${group//./\\.}(\.|\$)" "$scratch/names" | while IFS= read -r name; do
    printf '%s\n' "$output" | grep -qE "^(ok  |FAIL) ${name//./\\.}: " && continue
    line=$(timeout -s KILL 60 "$program" run "=$name" 2>&1)
    code=$?
    if printf '%s\n' "$line" | grep -E "^(ok  |FAIL) ${name//./\\.}: "; then continue; fi
    echo "FAIL $name: no verdict, exit code $code: $(one_line "$(printf '%s\n' "$line" | tail -2)")"
  done
}

# contract_suite PROGRAM: the cases of one contract suite on the GPU; after a crash it goes on behind the case that
# crashed.
contract_suite() {
  local suite=$1 done_cases="" attempt output code running
  for attempt in 1 2 3 4 5 6; do
    output=$(timeout -s KILL 150 "$tests/$suite" --gtest_filter="*/cuda${done_cases:+-$done_cases}" 2>&1)
    code=$?
    printf '%s\n' "$output" | awk -v suite="$suite" '
      /^\[ RUN      \]/ { name = $4; text = ""; next }
      /^\[       OK \]/ { print "ok   contract." suite "." name " " $5 " " $6; name = ""; next }
      /^\[  SKIPPED \]/ && name != "" { print "SKIPPED contract." suite "." name ": " text; name = ""; next }
      /^\[  FAILED  \]/ && name != "" { text = substr(text, 1, 500); sub(/ +$/, "", text); print "FAIL contract." suite "." name ": " text; name = ""; next }
      name != "" { text = text " " $0 }'
    running=$(printf '%s\n' "$output" | awk '/^\[ RUN / { name = $4 } /^\[ +(OK|FAILED|SKIPPED) +\]/ { name = "" } END { print name }')
    [ -z "$running" ] && break
    echo "FAIL contract.$suite.$running: ended in it with exit code $code (attempt $attempt)"
    done_cases=$(printf '%s\n' "$output" | awk '/^\[ RUN / { printf ":%s", $4 }' | cut -c2-)${done_cases:+:$done_cases}
  done
  [ "$code" -eq 0 ] || [ "$code" -eq 1 ] || [ -n "$running" ] || echo "FAIL contract.$suite: exit code $code"
}

# racecheck CHECK: compute-sanitizer's racecheck, of the instance that was compiled with source lines. Two kinds of order
# it does not see; hazards of these kinds, told by the source lines of both sides, are named and not judged:
# - a bulk copy (ptx/tma.cuh) is complete once its bytes have been counted on an mbarrier: it calls every read of what a
#   bulk copy without a tensor map brought a race. The reads follow a wait for that phase (stage_full).
# - lanes write, then __syncwarp, then lane 0 arrives on an mbarrier for the warp: it counts the arrival for lane 0 only.
#   So row maxima are exchanged between warpgroups (swiglu.cuh, math_extra.cuh; amax_full, in two buffers used in turn).
racecheck() {
  local name=$1 output judged=0 copies=0 told=0 text="" hazard
  output=$(MEGAMOE_DEVICE_CHECK_DEADLINE_S=100 timeout -s KILL 150 compute-sanitizer --tool racecheck --print-limit 1000 \
    "$program" run "=$name" 2>&1)
  printf '%s\n' "$output" >"$scratch/raw.$name"
  if ! printf '%s\n' "$output" | grep -q 'RACECHECK SUMMARY' || ! printf '%s\n' "$output" | grep -q "^ok   $name: "; then
    echo "FAIL racecheck.$name: no verdict: $(one_line "$output")"
    return
  fi
  # One line a hazard: "Write tma.cuh:71 Read memory.cuh:120".
  while IFS= read -r hazard; do
    if [[ $hazard == *"Write tma.cuh:"* ]]; then
      copies=$((copies + 1))
    elif [[ $hazard =~ ^Write\ swiglu.cuh:[0-9]+(\ Read\ swiglu.cuh:[0-9]+)+$ ||
      $hazard =~ ^Write\ math_extra.cuh:[0-9]+(\ Read\ math_extra.cuh:[0-9]+)+$ ]]; then
      told=$((told + 1))
    else
      judged=$((judged + 1))
      text+=" [$hazard]"
    fi
  done < <(printf '%s\n' "$output" | awk '
    /Race reported/ { if (line != "") print line; line = "" }
    /(Write|Read) access/ {
      kind = /Write access/ ? "Write" : "Read"
      where = match($0, /[A-Za-z0-9_]+\.cuh?:[0-9]+/) ? substr($0, RSTART, RLENGTH) : "unknown"
      line = line (line == "" ? "" : " ") kind " " where }
    END { if (line != "") print line }')
  if ! printf '%s\n' "$output" | grep -q "RACECHECK SUMMARY: $((judged + copies + told)) hazard"; then
    echo "FAIL racecheck.$name: hazards that were not understood: $(one_line "$output")"
    return
  fi
  printf '%s racecheck.%s: %s hazards%s; not judged: %s between bulk copies and reads after their mbarrier phase, %s between writes that lane 0 tells of for its warp\n' \
    "$([ $judged -eq 0 ] && echo 'ok  ' || echo FAIL)" "$name" $judged "$(one_line "$text")" $copies $told
}

# sanitizer TOOL CHECK: one check of the program under compute-sanitizer.
sanitizer() {
  local tool=$1 name=$2 output summary verdict=FAIL
  output=$(MEGAMOE_DEVICE_CHECK_DEADLINE_S=100 timeout -s KILL 100 compute-sanitizer --tool "$tool" --error-exitcode 9 \
    "$program" run "=$name" 2>&1) && verdict='ok  '
  summary=$(printf '%s\n' "$output" | grep -m1 -E 'SUMMARY')
  [ -n "$summary" ] || verdict=FAIL
  echo "$verdict $tool.$name: ${summary:-no summary}$([ "$verdict" = FAIL ] && one_line ": $(printf '%s\n' "$output" | grep -E '=========|FAIL' | head -12)")"
}

command_line() {
  local output code fixture=$MEGAMOE_FIXTURES/deepseek_v3_fp8
  output=$(timeout -s KILL 60 "$folder/megamoe" run --checkpoint "$fixture" --layer 1 --ranks 2 --device cuda \
    --inputs "$fixture/moe_layer_io.safetensors" --compare routed_out_fp32_dequant_weights 2>&1)
  code=$?
  if [ $code -eq 0 ]; then
    echo "ok   command_line: megamoe run on 2 ranks: $(one_line "$(printf '%s\n' "$output" | tail -1)")"
  else
    echo "FAIL command_line: exit code $code: $(one_line "$output")"
  fi
}

"$program" list >"$scratch/names"
groups=$(cut -d. -f1 "$scratch/names" | awk '!seen[$0]++')
number=0
# start COMMAND...: in the background, at most $jobs at a time; its lines come out in the order of the starts.
start() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  number=$((number + 1))
  "$@" >"$scratch/$(printf 'out.%03d' $number)" 2>&1 &
}
# What measures time has the machine for itself.
for group in first_call absent_rank; do
  number=$((number + 1))
  check_group $group >"$scratch/$(printf 'out.%03d' $number)" 2>&1
done
for group in slice model; do start check_group $group; done
for suite in $suites; do
  if [ -x "$tests/$suite" ]; then start contract_suite "$suite"; else start echo "FAIL contract.$suite: not built"; fi
done
for group in $groups; do
  case $group in first_call | absent_rank | slice | model) ;; *) start check_group "$group" ;; esac
done
start command_line
if command -v compute-sanitizer >/dev/null; then
  for name in oracle.m128.odd.77_tokens.1_ranks oracle.m64.odd.77_tokens.1_ranks refuses_bad_id.1_ranks; do
    start sanitizer memcheck $name
  done
  for name in oracle.m128_chaos.split_tiles oracle.m128_chaos.full_tiles; do start racecheck $name; done
else
  for tool in memcheck racecheck; do start echo "SKIPPED $tool: compute-sanitizer is not installed"; done
fi
wait
gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
start echo "SKIPPED two_gpus: needs ranks on two GPUs; this machine has $gpus, and the checks place all ranks on one"
wait
sed "s/ *$//" "$scratch"/out.* | tee "$scratch/all"
if [ -n "${MEGAMOE_DEVICE_CHECK_RAW:-}" ]; then cp "$scratch"/raw.* "$MEGAMOE_DEVICE_CHECK_RAW/"; fi
echo "$SECONDS s"
count() { grep -cE "$1" "$scratch/all"; }
failed=$(count '^FAIL ')
echo "$(count '^ok ') passed, $failed failed, $(count '^SKIPPED ') skipped"
[ "$failed" -eq 0 ]
