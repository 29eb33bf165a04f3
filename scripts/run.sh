#!/usr/bin/env bash
# `make run`: sets the machine up, builds the command line and runs the layer of the checkpoint under tests/fixtures.
# Usage: scripts/run.sh [more options of `megamoe run`]
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

scripts/setup.sh run

cuda=OFF
if ! has_gpu; then
  echo "make run: no NVIDIA GPU found; this build is for CPU only"
elif nvcc=$(find_nvcc); then
  cuda=ON
  export CUDACXX=$nvcc
else
  echo "make run: a GPU is here but nvcc is not (not on PATH, not in /usr/local/cuda/bin); this build is for CPU only"
fi

if [[ ! -x build/run/megamoe ]]; then
  echo "make run: building the megamoe command line; log: build/run/build.log"
fi
started=$SECONDS
configure_and_build run --targets megamoe -DMEGAMOE_CUDA=$cuda
if ((SECONDS - started > 1)); then echo "make run: built in $((SECONDS - started)) s"; fi

# What ARGS names replaces what is given here; another layer (--model, --checkpoint) replaces all but the ranks.
fixture=tests/fixtures/deepseek_v3_fp8
given=" $* "
options=()
if [[ $given != *" --model"[=\ ]* && $given != *" --checkpoint"[=\ ]* ]]; then
  options+=(--checkpoint "$fixture")
  if [[ $given != *" --layer"[=\ ]* ]]; then options+=(--layer 1); fi
  if [[ $given != *" --inputs"[=\ ]* ]]; then options+=(--inputs "$fixture/moe_layer_io.safetensors"); fi
  if [[ $given != *" --compare"[=\ ]* ]]; then options+=(--compare routed_out_fp32_dequant_weights); fi
fi
if [[ $given != *" --ranks"[=\ ]* ]]; then options+=(--ranks 4); fi
exec build/run/megamoe run "${options[@]}" "$@"
