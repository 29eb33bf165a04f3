# Shared by the scripts: source root, cores, CUDA detection, quiet builds. Sourced, not run.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cores=$(nproc)

# Prints the path of nvcc, or fails.
find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Prints the path of cuobjdump: of the CUDA toolkit, or of the packages of scripts/requirements_cuda.txt in build/venv,
# which are installed when need be. Fails where there is neither.
find_cuobjdump() {
  local nvcc candidate log=$root/build/venv_cuda.log
  nvcc=$(find_nvcc || true)
  for candidate in "$(command -v cuobjdump || true)" "${nvcc%nvcc}cuobjdump"; do
    if [[ -x $candidate ]] && command -v "${candidate%cuobjdump}nvdisasm" >/dev/null; then
      echo "$candidate"
      return
    fi
  done
  candidate=$(compgen -G "$root/build/venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump" || true)
  if [[ ! -x $candidate ]]; then
    make_venv >&2 || return 1
    : >"$log"
    run_logged "$log" "$root/build/venv/bin/pip" install --disable-pip-version-check --quiet \
      -r "$root/scripts/requirements_cuda.txt" >&2 || return 1
    candidate=$(compgen -G "$root/build/venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump" || true)
  fi
  [[ -x $candidate ]] && echo "$candidate"
}

has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null
}

# run_logged LOG COMMAND...: output goes to LOG; on a terminal its newest progress line is shown; the tail on failure.
run_logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  echo "+ $*" >>"$log"
  local status=0
  if [[ -t 1 ]]; then
    { "$@" 2>&1 </dev/null || echo "exit status $?" >"$log.failed"; } | tee -a "$log" |
      while IFS= read -r line; do
        if [[ $line == \[* ]]; then printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$line"; fi
      done
    printf '\r\033[K'
    if [[ -e $log.failed ]]; then
      rm -f "$log.failed"
      status=1
    fi
  else
    "$@" >>"$log" 2>&1 </dev/null || status=1
  fi
  if ((status != 0)); then
    tail -n 40 "$log" >&2
    echo "failed: $* (whole log: $log)" >&2
  fi
  return $status
}

# configure_and_build PRESET [--targets "a b"] [cmake -D options...]: quiet; configures only when something changed.
configure_and_build() {
  local preset=$1 targets=()
  shift
  if [[ ${1:-} == --targets ]]; then
    read -ra targets <<<"$2"
    shift 2
  fi
  local dir=$root/build/$preset log=$root/build/$preset/build.log
  mkdir -p "$dir"
  : >"$log"
  local wanted
  wanted="$* $(cksum <"$root/CMakePresets.json")"
  if [[ ! -e $dir/build.ninja || $(cat "$dir/configured_with" 2>/dev/null) != "$wanted" ]]; then
    (cd "$root" && run_logged "$log" cmake --preset "$preset" "$@") || return 1
    echo "$wanted" >"$dir/configured_with"
  fi
  run_logged "$log" ninja -C "$dir" -j "$cores" "${targets[@]}"
}

# project_files PATTERN...: tracked files, and new ones that git does not ignore, one a line.
project_files() {
  local file
  git -C "$root" ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r file; do
    if [[ -f $root/$file ]]; then echo "$file"; fi
  done
}

# build_wheel CUDA: builds the wheel into build/wheels/CUDA (on, off or auto) by build/python, which has its build tools.
build_wheel() {
  local cuda=$1 log=$root/build/wheel-$1.log out=$root/build/wheels/$1
  : >"$log"
  rm -rf "$out"
  SKBUILD_BUILD_DIR=$root/build/wheel-$cuda SKBUILD_CMAKE_DEFINE=MEGAMOE_WHEEL_CUDA=$cuda CMAKE_BUILD_PARALLEL_LEVEL=$cores \
    run_logged "$log" "$root/build/python/bin/pip" wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$out" "$root"
}

# make_environment NAME REQUIREMENTS: makes build/NAME with the pinned Python packages; instant when it is up to date.
make_environment() {
  local venv=$root/build/$1 requirements=$root/scripts/$2 python=/usr/bin/python3
  if cmp -s "$requirements" "$venv/installed.txt"; then return; fi
  if [[ ! -x $python ]]; then python=python3; fi
  local log=$venv.log
  mkdir -p "$root/build"
  : >"$log"
  rm -rf "$venv"
  run_logged "$log" "$python" -m venv "$venv" &&
    run_logged "$log" "$venv/bin/pip" install --disable-pip-version-check --quiet -r "$requirements" &&
    cp "$requirements" "$venv/installed.txt"
}

# The Python tools of the checks, in build/venv.
make_venv() { make_environment venv requirements.txt; }
