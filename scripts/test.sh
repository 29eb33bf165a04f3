#!/usr/bin/env bash
# Every check, stage by stage; a stage that fails does not stop the others, and one that runs nothing fails.
# Usage: scripts/test.sh all|check|STAGE...  The last line is "N passed, N failed, N skipped".
set -uo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root" || exit 1

all_stages=(tree format scripts includes cpu python asan fuzz tsan tidy cuda)
check_stages=(format includes quick)
case "${1:-}" in
  all) stages=("${all_stages[@]}") ;;
  check) stages=("${check_stages[@]}") ;;
  "")
    echo "test: name a set (all, check) or stages out of: ${all_stages[*]} quick" >&2
    exit 2
    ;;
  *) stages=("$@") ;;
esac

passed=0 failed=0 skipped=0
summary=()
stage_passed=0 stage_failed=0 stage_skipped=0
tally() {
  stage_passed=$((stage_passed + $1)) stage_failed=$((stage_failed + $2)) stage_skipped=$((stage_skipped + $3))
}

# one_check COMMAND...: counts as one passed or one failed.
one_check() {
  if "$@" </dev/null; then tally 1 0 0; else tally 0 1 0; fi
}

# ThreadSanitizer and AddressSanitizer of LLVM 14 cannot map their shadow under strong address randomisation.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# run_ctest PRESET [ctest options]: counts every case; says why a case was skipped and how it failed.
run_ctest() {
  local dir=build/$1 counts
  shift
  rm -f "$dir/junit.xml"
  # The sanitizers look for llvm-symbolizer on PATH.
  PATH=$PATH:/usr/lib/llvm-14/bin "${fixed_addresses[@]}" ctest --test-dir "$dir" --parallel "$cores" --no-tests=error --output-junit "$root/$dir/junit.xml" \
    "$@" >"$dir/ctest.log" 2>&1 </dev/null
  if ! counts=$(scripts/count_tests.py "$dir/junit.xml"); then
    tail -n 20 "$dir/ctest.log"
    counts="0 1 0"
  fi
  # shellcheck disable=SC2086
  tally $counts
}

# built PRESET [options]: builds, or counts one failure.
built() {
  if configure_and_build "$@"; then return 0; fi
  tally 0 1 0
  return 1
}

# Tests that compare with numpy and ml_dtypes.
export MEGAMOE_PYTHON=$root/build/venv/bin/python

stage_tree() {
  one_check scripts/check_tree.py
  one_check bench/plot.py --check
}
stage_format() { one_check scripts/format.sh --check; }

stage_scripts() {
  local shell_scripts
  mapfile -t shell_scripts < <(project_files '*.sh' .ci/run)
  one_check shellcheck -x "${shell_scripts[@]}"
  if ! make_venv; then
    echo "scripts: the Python tools of scripts/requirements.txt could not be installed into build/venv"
    tally 0 2 0
    return
  fi
  one_check build/venv/bin/ruff format --check --quiet .
  one_check build/venv/bin/ruff check --quiet .
}

stage_includes() { one_check scripts/check_includes.py; }

stage_quick() {
  make_venv || tally 0 1 0
  built cpu && run_ctest cpu -L 'unit|contract'
}

stage_cpu() {
  make_venv || tally 0 1 0
  built cpu && run_ctest cpu
}

# The wheel as `pip install .` makes it, installed into an environment that holds numpy, ml_dtypes and pytest beside it.
stage_python() {
  if ! make_environment python python_requirements.txt; then
    echo "python: the packages of scripts/python_requirements.txt could not be installed into build/python"
    tally 0 1 0
    return
  fi
  if ! build_wheel off || ! run_logged build/wheel-off.log build/python/bin/pip install --disable-pip-version-check \
    --force-reinstall --no-deps build/wheels/off/*.whl; then
    tally 0 1 0
    return
  fi
  local counts
  rm -f build/python.xml
  env -u MEGAMOE_LIBRARY -u PYTHONPATH build/python/bin/python -m pytest -q -p no:cacheprovider --junitxml build/python.xml tests/python >build/python.log 2>&1 </dev/null
  if ! counts=$(scripts/count_tests.py build/python.xml); then
    tail -n 20 build/python.log
    counts="0 1 0"
  fi
  # shellcheck disable=SC2086
  tally $counts
}

stage_asan() {
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
  export UBSAN_OPTIONS=print_stacktrace=1
  # Left out: the explorer's long searches, which are minutes of one small loop (its other tests run the same code), and
  # the resident bytes of 200 rounds, since freed memory stays in the sanitizer's quarantine.
  built cpu-asan && run_ctest cpu-asan -LE 'compile_fail|fuzz' \
    -E '^protocol_exploration_test\.Configs/|^protocol_logic_mutation_test\.|ProcessGroupLeaks\.NothingAfterTwoHundred'
}

stage_fuzz() { built cpu-asan && run_ctest cpu-asan -L fuzz; }

stage_tsan() {
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  built cpu-tsan --targets tests_protocol && run_ctest cpu-tsan -L protocol
}

stage_tidy() {
  local sources out=build/tidy file
  # These are compiled with CUDA only, where nvcc's warnings are errors (stage cuda).
  mapfile -t sources < <(project_files 'src/*.cc' | grep -vE '^src/(backends/sm90/|comm/cuda_)')
  if [[ ! -e build/cpu/compile_commands.json ]] && ! built cpu; then return; fi
  rm -rf $out && mkdir -p $out
  # shellcheck disable=SC2016
  printf '%s\n' "${sources[@]}" | xargs -r -P "$cores" -I{} bash -c \
    'clang-tidy-14 -p build/cpu --quiet --extra-arg=-Wno-unknown-warning-option --warnings-as-errors="*" "$1" >"$2/${1//\//_}.log" 2>&1 && touch "$2/${1//\//_}.ok"' - {} $out
  for file in "${sources[@]}"; do
    if ! grep -q "\"file\": \"$root/$file\"" build/cpu/compile_commands.json; then
      echo "tidy: $file belongs to no target, so nothing compiles it"
      tally 0 1 0
    elif [[ -e $out/${file//\//_}.ok ]]; then
      tally 1 0 0
    else
      grep -v '^[0-9]* warnings\? ' "$out/${file//\//_}.log" | head -n 30
      tally 0 1 0
    fi
  done
}

stage_cuda() {
  if ! CUDACXX=$(find_nvcc); then
    echo "cuda: SKIPPED, since nvcc is neither on PATH nor in /usr/local/cuda/bin: nothing was compiled for sm_90a"
    tally 0 0 1
    return
  fi
  export CUDACXX
  one_check scripts/check_nvcc_headers.sh
  if [[ -e src/backends/sm90/CMakeLists.txt ]]; then
    built sm90 -DMEGAMOE_BUILD_TESTS=OFF || return
    tally 1 0 0
    local cuobjdump
    if cuobjdump=$(find_cuobjdump); then
      one_check scripts/check_kernel_budget.py build/sm90/src/backends/sm90/CMakeFiles/megamoe_sm90.dir/instances \
        src/backends/sm90/budget.json --cuobjdump "$cuobjdump"
    else
      echo "cuda: cuobjdump could not be found or installed, so the kernels were not held to their budget"
      tally 0 1 0
    fi
    if [[ -x build/sm90/megamoe ]]; then one_check scripts/check_starts_without_driver.sh build/sm90/megamoe; fi
  fi
}

if ! scripts/setup.sh test; then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi

for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "test: no stage is called '$stage'; use some of: ${all_stages[*]} quick" >&2
    exit 2
  fi
  echo "== $stage"
  stage_passed=0 stage_failed=0 stage_skipped=0
  started=$SECONDS
  "stage_$stage"
  if ((stage_passed + stage_failed + stage_skipped == 0)); then
    echo "$stage: ran nothing, which counts as a failure"
    stage_failed=1
  fi
  line=$(printf '%-9s %5d passed %4d failed %4d skipped %5d s' \
    "$stage" $stage_passed $stage_failed $stage_skipped $((SECONDS - started)))
  echo "$line"
  summary+=("$line")
  passed=$((passed + stage_passed)) failed=$((failed + stage_failed)) skipped=$((skipped + stage_skipped))
done

echo "== summary ($SECONDS s)"
printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
