#!/usr/bin/env bash
# A program built with CUDA must start where no NVIDIA driver is: libcuda is never linked. Usage: ... PROGRAM
set -euo pipefail

program=$1
if readelf -d "$program" | grep -E 'NEEDED.*lib(cuda|cudart|nvidia)'; then
  echo "$program needs the library above to start; load it at run time instead"
  exit 1
fi
"$program" --version
