#!/usr/bin/env bash
# Compares tables.txt with what make_tables.py computes, using the interpreter named by MEGAMOE_PYTHON. Exit 77: skipped.
set -u
python=${MEGAMOE_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "skipped: no '$python'; set MEGAMOE_PYTHON to an interpreter with numpy"
  exit 77
fi
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/make_tables.py" --check
