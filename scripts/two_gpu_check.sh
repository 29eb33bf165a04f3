#!/usr/bin/env bash
# What needs ranks on two GPUs, in one call: one line a check, last line "N passed, N failed, N skipped".
#   scripts/two_gpu_check.sh [--rehearse] [FOLDER]
# FOLDER holds megamoe and tests/ as a build with -DMEGAMOE_CUDA=ON leaves them (build/sm90). --rehearse runs all of it
# with the ranks on GPU 0. Shared libraries next to the programs are found in FOLDER/lib.
set -u
rehearse=0
if [ "${1:-}" = --rehearse ]; then
  rehearse=1
  shift
fi
folder=${1:-build/sm90}
program=$folder/tests/megamoe_process_check
if [ ! -x "$program" ]; then
  echo "two_gpu_check: $program must be there, and it is not; build the target megamoe_process_check"
  exit 2
fi
[ -d "$folder/lib" ] && export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0 skipped=0
note() { # note STATUS NAME TEXT
  case $1 in ok) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; *) skipped=$((skipped + 1)) ;; esac
  printf '%-4s %s%s\n' "$1" "$2" "${3:+: $3}"
}
found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
gpus=0,1
if [ $rehearse -eq 1 ]; then
  gpus=0,0
  [ "$found" -ge 1 ] || { note SKIPPED two_gpus "a rehearsal needs a GPU, found $found"; gpus=; }
elif [ "$found" -lt 2 ]; then
  note SKIPPED two_gpus "needs two GPUs, found $found; --rehearse runs both ranks on one"
  gpus=
fi
if [ -n "$gpus" ]; then
  while IFS= read -r line; do
    case $line in
      ok*) passed=$((passed + 1)) ;;
      FAIL*) failed=$((failed + 1)) ;;
      SKIPPED*) skipped=$((skipped + 1)) ;;
      ' '*) ;;
      *) continue ;;
    esac
    printf '%s\n' "$line"
  done < <(timeout -s KILL 240 "$program" "$gpus" 2>&1 || echo "FAIL process: exit code $? of $program")
  # The command line: threads on one GPU, threads on all, processes on all; the bytes of the output must not differ.
  if [ -x "$folder/megamoe" ]; then
    hash_of() { timeout -s KILL 60 "$folder/megamoe" run --model tiny --ranks 2 --device cuda --json "$@" 2>&1; }
    field() { printf '%s' "$1" | grep -oE '"output_hash": ?"[^"]*"'; }
    one=$(hash_of --gpus 0)
    for how in "--gpus $gpus" "--gpus $gpus --processes"; do
      # shellcheck disable=SC2086
      other=$(hash_of $how)
      if [ -n "$(field "$one")" ] && [ "$(field "$one")" = "$(field "$other")" ]; then
        note ok "megamoe run $how" "$(field "$other")"
      else
        note FAIL "megamoe run $how" "$(printf '%s | %s' "$one" "$other" | cut -c1-600)"
      fi
    done
  else
    note SKIPPED command_line "$folder/megamoe is not there"
  fi
  # The driver's memory, descriptors, probe and deaths: the contract of groups, ranks in turn on all GPUs.
  for suite in gpu_group_contract symmetric_memory_contract process_group_contract; do
    if [ ! -x "$folder/tests/$suite" ]; then
      note SKIPPED "contract.$suite" "the program is not there"
      continue
    fi
    text=
    while IFS= read -r line; do
      name=$(printf '%s' "$line" | awk '{ print $4 }' | tr -d ,)
      case $line in
        '[ RUN'*) text= ;;
        '[       OK ]'*) note ok "contract.$name" "$(printf %s "${line##* (}" | tr -d ")")" ;;
        '[  SKIPPED ]'*' ms)') note SKIPPED "contract.$name" "$text" ;;
        '[  FAILED  ]'*' ms)') note FAIL "contract.$name" "${text:0:600}" ;;
        'ended '*) note FAIL "contract.$suite" "$line" ;;
        *) text="$text $line" ;;
      esac
    done < <(timeout -s KILL 180 "$folder/tests/$suite" --gtest_filter='*cuda*:*OnCuda*' 2>&1
      code=$?
      [ $code -le 1 ] || echo "ended with exit code $code")
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
