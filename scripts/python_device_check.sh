#!/usr/bin/env bash
# Checks of the Python package that need PyTorch, on a machine with an SM90 GPU: one line for each check, a total at the end.
# Usage: scripts/python_device_check.sh WHEEL_DIR [pytest options]; WHEEL_DIR holds the wheel, built with CUDA. "-m gpu"
# leaves out what needs no GPU. The wheel is installed into a temporary folder for the python3 on PATH, which must have
# torch and pytest. CHECK_SECONDS bounds each of the files of checks (300).
set -uo pipefail
wheels=${1:?"name the folder that holds the wheel"}
shift
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tests/python/device" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

python3 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" "$wheels"/megamoe-*.whl || exit 1
export PYTHONPATH=$site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python3 - <<'PYTHON' || exit 1
import megamoe, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
print(f"megamoe {megamoe.__version__}, torch {torch.__version__}, GPU: {gpu}")
PYTHON

# A process for each file: one that hangs or crashes does not hide the others.
status=0
for file in test_checkpoint.py test_drop_in.py test_operator.py test_ranks.py; do
  started=$SECONDS
  (cd "$tests" && timeout -k 5 "${CHECK_SECONDS:-300}" python3 -m pytest -c /dev/null --rootdir "$tests" -p no:cacheprovider \
    -o faulthandler_timeout=60 -v --no-header --tb=short --show-capture=no -W ignore -rs "$@" "$file") 2>&1 | grep -vE '^(collecting|rootdir|$)'
  code=${PIPESTATUS[0]}
  echo "$file: exit status $code after $((SECONDS - started)) s"
  if ((code != 0)); then status=1; fi
done
if ((status == 0)); then echo "python device check: all passed"; else echo "python device check: FAILED"; fi
exit $status
