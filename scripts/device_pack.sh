#!/usr/bin/env bash
# Puts what scripts/device_check.sh needs into one folder, to carry to a machine with a GPU: 64 MiB at most.
#   scripts/device_pack.sh FOLDER [BUILD]     BUILD: build/sm90, where its target device_checks is built first
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
folder=$(realpath -m "$1")
build=$(realpath -m "${2:-$root/build/sm90}")
most_bytes=$((64 << 20))

ninja -C "$build" -j "$cores" device_checks >/dev/null
rm -rf "${folder:?}"/{tests,lib,fixtures,megamoe,device_check.sh}
mkdir -p "$folder/tests" "$folder/lib"
programs=("$build/tests/megamoe_device_check" "$build"/tests/layer_{smoke,protocol,sizes,numbers,formats,extras}_test)
cp "${programs[@]}" "$folder/tests/"
cp "$build/megamoe" "$folder/"
# A machine with a GPU has the C and C++ libraries; the others travel.
for library in $(ldd "${programs[@]}" "$build/megamoe" | awk '$3 ~ "^/" { print $3 }' | sort -u); do
  case $(basename "$library") in
    libc.* | libm.* | libstdc++.* | libgcc_s.* | libpthread.* | libdl.* | librt.*) ;;
    *) cp -L "$library" "$folder/lib/" ;;
  esac
done
strip "$folder"/tests/* "$folder/megamoe"
mkdir "$folder/fixtures"
cp -r "$root"/tests/fixtures/deepseek_v3{,_fp8} "$folder/fixtures/"  # those that the checks and the contract read
cp "$root/scripts/device_check.sh" "$folder/"
bytes=$(du -sb "$folder" | cut -f1)
echo "device_pack: $folder holds $bytes bytes"
if ((bytes > most_bytes)); then
  echo "device_pack: it must hold at most $most_bytes bytes" >&2
  exit 1
fi
