#!/usr/bin/env bash
# Installs the built project into a folder of its own, builds a consumer against it by CMake and by pkg-config, runs both,
# compares the exported symbols with the header, uninstalls, and looks for what is left.
set -euo pipefail
source_dir=$PWD
build_dir=${MEGAMOE_BINARY_DIR:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build_dir" --prefix "$prefix" >"$work/install.log"
library=$(find "$prefix" -name 'libmegamoe.so.*.*.*')

# The exports are the header's functions, all of them and no others.
nm -D --defined-only "$library" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | sort -u >"$work/exported"
nm -D --defined-only "$library" | awk '$2 != "T" && $2 != "A" {print}' >"$work/other_exports"
grep -o 'MEGAMOE_API.*' "$source_dir/include/megamoe/megamoe.h" | grep -o '\bmegamoe_[a-z_0-9]*(' | tr -d '(' | sort -u >"$work/declared"
diff "$work/declared" "$work/exported"
if [[ -s $work/other_exports ]]; then
  echo "the library exports more than the C interface:"
  cat "$work/other_exports"
  exit 1
fi

cmake -S "$source_dir/tests/package/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" >"$work/consumer.log"
cmake --build "$work/consumer" >>"$work/consumer.log"
"$work/consumer/consumer"
"$work/consumer/checkpoint" "$source_dir/tests/fixtures/qwen2_moe" "$source_dir/tests/fixtures/mixtral"

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH
  PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name megamoe.pc)")
  # pkg-config prefixes come from the configured prefix; --define-prefix follows the file.
  read -ra flags <<<"$(pkg-config --define-prefix --cflags --libs megamoe)"
  cc -std=c11 "$source_dir/tests/package/consumer/consumer.c" -o "$work/by_pkg_config" "${flags[@]}" -lm
  LD_LIBRARY_PATH=$(dirname "$library") "$work/by_pkg_config"
fi

cmake --build "$build_dir" --target uninstall >"$work/uninstall.log"
left=$(find "$prefix" -type f -o -type l)
if [[ -n $left ]]; then
  echo "uninstall left:"
  echo "$left"
  exit 1
fi
