#!/usr/bin/env bash
# Takes a set of figures on a GPU and appends them to a file. Each set takes under 150 s on an H200.
# Usage: bench/measure.sh slices|models|skew|shared|tiles FILE.jsonl [PROGRAM]
#   slices  the tables of docs/performance.md: both slices, both protocols, FP8 and BF16 tokens, uniform routing
#   models  whole layers of deepseek-v3, qwen3-235b-a22b and glm-4.5 on one GPU
#   skew    the slices with zipf:1.0 and one hot expert
#   shared  a rehearsal: two ranks that share the GPU
#   tiles   both block sizes, for megamoe_fit_cost_model: FILE should be bench/results/h200_tiles.jsonl
set -euo pipefail
if (($# < 2)); then
  sed -n '2,9p' "$0" | cut -c3- >&2
  exit 2
fi
set_name=$1 file=$2 program=${3:-build/sm90/megamoe}
all=1,8,32,128,256,512,1024,2048,4096,8192
bench() { "$program" bench --device cuda --append "$file" "$@" >/dev/null; }
case $set_name in
  slices) bench --model flash-slice,pro-slice --tokens $all --repeat 20 ;;
  models) bench --model deepseek-v3,qwen3-235b-a22b,glm-4.5 --tokens 1,32,128,512,2048,8192 --input fp8 --repeat 20 ;;
  skew)
    bench --model flash-slice,pro-slice --routing zipf:1.0,hot --tokens 128,1024,8192 --input fp8 --repeat 20
    ;;
  shared) bench --model flash-slice,pro-slice --ranks 2 --tokens 8,128,1024 --input fp8 --repeat 20 ;;
  tiles)
    for rows in 64 128; do
      bench --model flash-slice,pro-slice --block-rows $rows --input fp8 --protocol cold --repeat 8 \
        --tokens "$([[ $rows == 64 ]] && echo 1,8,32,128,256,512 || echo $all)"
      bench --model qwen3-235b-a22b,deepseek-v3 --block-rows $rows --input fp8 --protocol cold --repeat 8 \
        --tokens "$([[ $rows == 64 ]] && echo 1,32,128 || echo 128,512,2048)"
    done
    ;;
  *)
    echo "measure: the set must be slices, models, skew, shared or tiles, got '$set_name'" >&2
    exit 2
    ;;
esac
