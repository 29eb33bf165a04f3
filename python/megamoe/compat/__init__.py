"""Modules with the names and signatures of other packages, for programs written for those.

`install_alias()` makes `import deep_gemm` find `megamoe.compat.deep_gemm`; it is never done without being asked for.
"""

from __future__ import annotations

import importlib
import sys

from megamoe._errors import InvalidArgumentError

__all__ = ["install_alias", "remove_alias"]

_ALIASED = ("", ".mega", ".testing", ".utils", ".utils.dist", ".utils.math")


def install_alias(*, replace: bool = False) -> None:
    """Puts `megamoe.compat.deep_gemm` and its parts into sys.modules as `deep_gemm`. Imports torch.

    Refuses where another `deep_gemm` is imported already, since programs would then hold parts of both; `replace` does
    it all the same.
    """
    ours = {f"deep_gemm{part}": importlib.import_module(f"megamoe.compat.deep_gemm{part}") for part in _ALIASED}
    present = sys.modules.get("deep_gemm")
    if present is not None and present is not ours["deep_gemm"] and not replace:
        raise InvalidArgumentError(
            "megamoe.compat.install_alias: no other deep_gemm may be imported before, and one is "
            f"({getattr(present, '__file__', present)}); install the alias first, or pass replace=True"
        )
    for name in [name for name in sys.modules if name == "deep_gemm" or name.startswith("deep_gemm.")]:
        del sys.modules[name]
    sys.modules.update(ours)


def remove_alias() -> None:
    """Takes out what `install_alias` put in."""
    for name in [name for name in sys.modules if name == "deep_gemm" or name.startswith("deep_gemm.")]:
        if getattr(sys.modules[name], "__name__", "").startswith("megamoe.compat."):
            del sys.modules[name]
