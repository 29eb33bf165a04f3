"""scripts/check_kernel_budget.py passes what is within the budget and fails each number that is not."""

import json
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[3] / "scripts" / "check_kernel_budget.py"
FAKE_CUOBJDUMP = """#!/bin/sh
case "$1" in
  -res-usage) printf ' Function moe_layer_x:\\n  REG:168 STACK:8 SHARED:1024 LOCAL:0\\n' ;;
  -sass) printf ' QGMMA.64x128x32 R1 ;\\n QGMMA.64x128x32 R2 ;\\n STL [R1], R2 ;\\n'
         printf ' LDL R2, [R1] ;\\n LDL.64 R2, [R1] ;\\n'
         # One bank conflict; then different banks, an operand out of the cache, and a sum that is no accumulation.
         printf ' /*0010*/ FFMA R2, R4, R6, R2 ;\\n /*0020*/ FFMA R3, R5, R6.reuse, R3 ;\\n'
         printf ' /*0030*/ FFMA R8, R4, R6, R8 ;\\n /*0040*/ FFMA R8, R4, R2, R10 ;\\n' ;;
esac
"""
WITHIN = {
    "registers": 168,
    "stack_bytes": 8,
    "spill_instructions": 3,
    "bank_conflicts": 1,
    "fp8_multiplies": 2,
    "reason": "made up",
}


class KernelBudget(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.cuobjdump = self.folder / "cuobjdump"
        self.cuobjdump.write_text(FAKE_CUOBJDUMP)
        self.cuobjdump.chmod(self.cuobjdump.stat().st_mode | stat.S_IXUSR)
        (self.folder / "m128.cu.o").touch()

    def check(self, budgets: dict) -> subprocess.CompletedProcess:
        budget = self.folder / "budget.json"
        budget.write_text(json.dumps(budgets))
        command = [sys.executable, str(CHECK), str(self.folder), str(budget), "--cuobjdump", str(self.cuobjdump)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_what_is_within_passes(self):
        result = self.check({"m128": WITHIN})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("1 instances are within it", result.stdout)

    def test_each_number_is_held(self):
        for key, limit in (
            ("registers", 167),
            ("stack_bytes", 7),
            ("spill_instructions", 2),
            ("bank_conflicts", 0),
            ("fp8_multiplies", 3),
        ):
            with self.subTest(key):
                result = self.check({"m128": {**WITHIN, key: limit}})
                self.assertEqual(result.returncode, 1)
                self.assertIn(f"m128: {key} must be at", result.stdout)

    def test_spills_need_a_reason(self):
        result = self.check({"m128": {**WITHIN, "reason": ""}})
        self.assertEqual(result.returncode, 1)
        self.assertIn("must give its reason", result.stdout)

    def test_instances_and_budgets_must_match(self):
        self.assertEqual(self.check({}).returncode, 1)
        result = self.check({"m128": WITHIN, "m64": WITHIN})
        self.assertEqual(result.returncode, 1)
        self.assertIn("m64: has a budget, but no object file", result.stdout)


if __name__ == "__main__":
    unittest.main()
