#!/usr/bin/env bash
# The promises of the foundation, one line each, with the figure that was measured now. Exit 1 when one is broken.
set -uo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root" || exit 1

export MEGAMOE_PYTHON=$root/build/venv/bin/python
export MEGAMOE_BINARY_DIR=$root/build/cpu
passed=0 failed=0
bin=build/cpu/tests
out=build/prove
mkdir -p "$out"

# line NAME FIGURE STATUS: one row of the report.
line() {
  if [[ $3 == 0 ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  printf '%-52s %s%s\n' "$1" "$2" "$([[ $3 == 0 ]] || echo '   FAILED')"
}

# proof NAME PATTERN COMMAND...: the figure is the first line of the output that matches PATTERN; the log stays in build/prove.
proof() {
  local name=$1 pattern=$2 log status figure
  shift 2
  log=$out/$(tr -c 'a-zA-Z0-9\n' '_' <<<"$name").log
  "$@" >"$log" 2>&1 </dev/null
  status=$?
  figure=$(grep -m1 -oE "$pattern" "$log")
  if [[ -z $figure ]]; then
    figure="no figure; see $log"
    status=1
  fi
  line "$name" "$figure" $status
}

# table NAME WORD COMMAND...: counts the rows of a mutant table, and keeps it.
table() {
  local name=$1 log status rows
  shift
  log=$out/$(tr -c 'a-zA-Z0-9\n' '_' <<<"$name").log
  "$@" >"$log" 2>&1 </dev/null
  status=$?
  rows=$(grep -cE '^[a-z_]+: [a-z >-]+  +(exploration|ThreadSanitizer)' "$log")
  if ((rows == 0)); then status=1; fi
  line "$name" "$rows mutants, each caught (table: $log)" $status
}

started=$SECONDS
scripts/setup.sh test || exit 1
make_venv || exit 1
echo "building ..."
configure_and_build cpu || exit 1
configure_and_build cpu-tsan --targets protocol_order_mutation_test || exit 1
configure_and_build cpu-asan || exit 1

passed_line='\[  PASSED  \] [0-9]+ tests?'
layer=$bin/process_layer_test
groups=$bin/process_group_contract
proof "ranks as processes give the bits of threads" "$passed_line" $layer --gtest_filter='*GivesTheBitsOfThreads'
proof "kill -9 of any rank at a random moment" '[0-9]+ kills: .*' $layer --gtest_filter='*AKilledRank*'
proof "a death is reported within 2 s" "$passed_line" $groups --gtest_filter='ProcessDeath.*WithinTwoSeconds:ProcessDeath.IsSeen*'
proof "a silent or absent rank within its deadline + 2 s" "$passed_line" $groups --gtest_filter='ProcessDeath.A*Deadline*'
proof "200 groups made and ended leave nothing behind" "$passed_line" $groups --gtest_filter='ProcessGroupLeaks.*'
proof "launchers, and groups that never meet" "$passed_line" $groups --gtest_filter='ProcessGroupFromEnvironment.*:ProcessGroupForming.*'
proof "hostile rendezvous folders, users and descriptors" "$passed_line" $groups --gtest_filter='Rendezvous*'
proof "containers: no pidfd_getfd, PID namespaces, tiny shm" "$passed_line" $groups --gtest_filter='Containers.*:Limits.*'
proof "a late source holds up only its own rows" "$passed_line" $bin/protocol_streaming_test
proof "an absent rank is named, and reset heals" "$passed_line" $bin/protocol_liveness_test
table "logic mutants" $bin/protocol_logic_mutation_test
table "memory order mutants (ThreadSanitizer)" setarch "$(uname -m)" -R build/cpu-tsan/tests/protocol_order_mutation_test
$bin/protocol_exploration_test >"$out/exploration.log" 2>&1 </dev/null
status=$?
# shellcheck disable=SC2016
count_schedules='/ schedules of about / {for (i = 1; i <= NF; ++i) if ($i == "schedules") n += $(i - 1)} END {print n + 0}'
line "interleavings explored" "$(awk "$count_schedules" "$out/exploration.log") schedules, none goes wrong" $status
proof "random delays change no bit" "$passed_line" $bin/protocol_delay_test
proof "10,000 calls in a row equal fresh handles" "$passed_line" $bin/protocol_back_to_back_test
proof "hostile files: refused with a sentence" "$passed_line" $bin/io_test
for target in safetensors_header checkpoint_index model_config cli_numbers; do
  proof "fuzz $target, 60 s" 'number_of_executed_units: *[0-9]+' ctest --test-dir build/cpu-asan -V -R "^fuzz.$target.clean$" --no-tests=error
  proof "fuzz $target finds its planted bug" '100% tests passed' ctest --test-dir build/cpu-asan -R "^fuzz.$target.planted$" --no-tests=error
done
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
proof "all tests under address and undefined sanitizers" '[0-9]+% tests passed, 0 tests failed out of [0-9]+' \
  ctest --test-dir build/cpu-asan --parallel "$cores" -LE 'compile_fail|fuzz' --no-tests=error \
  -E '^protocol_exploration_test\.Configs/|^protocol_logic_mutation_test\.|ProcessGroupLeaks\.NothingAfterTwoHundred'
proof "the installed package, seen by another project" 'consumer of megamoe [0-9.]+: ok' tests/package/package_test.sh

echo "$passed passed, $failed failed, 0 skipped in $((SECONDS - started)) s"
((failed == 0))
