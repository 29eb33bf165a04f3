"""The README's quick start works as it stands."""

import re
import subprocess
import sys

import support


def run(code, cwd=None):
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_checkpoint_of_the_readme():
    text = (support.ROOT / "README.md").read_text()
    code = re.search(r"```python\n(import megamoe.*?load_checkpoint.*?)```", text, re.DOTALL).group(1)
    printed = run(code, cwd=support.ROOT)
    assert printed.startswith("Router(top_k=3, scoring='sigmoid'") and "[[" in printed and "nan" not in printed


def test_the_quick_start_of_the_readme():
    text = (support.ROOT / "README.md").read_text()
    lines = re.search(r"```sh\n(scripts/setup\.sh run .*?)```", text, re.DOTALL).group(1).splitlines()
    assert len(lines) <= 15 and lines[1] == "python - <<'END'" and lines[-1] == "END"
    printed = run("\n".join(lines[2:-1]))
    assert printed.startswith("[[") and "nan" not in printed
