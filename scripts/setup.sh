#!/usr/bin/env bash
# Installs the Debian packages that are missing for `run` or `test`; instant and offline when none is.
# Usage: scripts/setup.sh run|test
set -euo pipefail

run_packages=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libhwy-dev)
test_packages=("${run_packages[@]}"
  git libgtest-dev libgmock-dev libopenblas0-pthread
  clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev llvm-14
  python3 python3-venv shellcheck)

case "${1:-}" in
  run) packages=("${run_packages[@]}") ;;
  test) packages=("${test_packages[@]}") ;;
  *)
    echo "setup: the package set must be run or test, got '${1:-}'; call scripts/setup.sh run" >&2
    exit 2
    ;;
esac

missing_packages() {
  if ! command -v dpkg-query >/dev/null; then return; fi
  # dpkg-query exits 1 when a name is unknown; what it knows is still printed.
  { dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' "${packages[@]}" 2>/dev/null || true; } |
    awk -v wanted="${packages[*]}" '
      $1 == "installed" { sub(/:.*/, "", $2); have[$2] = 1 }
      END { n = split(wanted, name, " "); for (i = 1; i <= n; i++) if (!(name[i] in have)) print name[i] }'
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not a Debian system, so no package is installed; needed here: ${packages[*]}" >&2
  exit 0
fi

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} == 0)); then exit 0; fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: installing packages needs root, and neither is the user root nor is sudo there; as root, run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null
}

echo "setup: installing ${missing[*]}"
# A machine with stale lists fails on the download, one without lists on the name; an unreachable mirror fails on both.
apt update || echo "setup: apt-get update failed; trying with the package lists that are here" >&2
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  tail -n 20 "$log" >&2
  echo "setup: apt-get could not install ${missing[*]}; see the lines above, and install them by hand if there is no network" >&2
  exit 1
fi
