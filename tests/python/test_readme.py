"""The README's quick start works as it stands."""

import re
import subprocess
import sys

import support


def test_the_quick_start_of_the_readme():
    text = (support.ROOT / "README.md").read_text()
    lines = re.search(r"```sh\n(scripts/setup\.sh run .*?)```", text, re.DOTALL).group(1).splitlines()
    assert len(lines) <= 15 and lines[1] == "python - <<'END'" and lines[-1] == "END"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines[2:-1])], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[[") and "nan" not in done.stdout
