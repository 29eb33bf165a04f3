#!/bin/sh
# Compares expected_formats.csv with ml_dtypes, using the interpreter named by MEGAMOE_PYTHON. Exit 77: skipped, with the reason.
here=$(dirname "$0")
python=${MEGAMOE_PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
  echo "skipped: no '$python'; set MEGAMOE_PYTHON to an interpreter with numpy and ml_dtypes"
  exit 77
fi
exec "$python" "$here/make_tables.py" --check "$here/expected_formats.csv"
