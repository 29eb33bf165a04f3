"""The package itself: what it binds is what the header declares, what it needs to import, what its library exports."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import megamoe
import support
from megamoe import _structs

HEADER = support.ROOT / "include" / "megamoe" / "megamoe.h"
STRUCTS = {
    "megamoe_tensor": _structs.Tensor,
    "megamoe_layer_config": _structs.LayerConfig,
    "megamoe_expert_weights": _structs.ExpertWeights,
    "megamoe_forward_args": _structs.ForwardArgs,
    "megamoe_process_options": _structs.ProcessOptions,
    "megamoe_checkpoint_options": _structs.CheckpointOptions,
    "megamoe_checkpoint_info": _structs.CheckpointInfo,
    "megamoe_router_config": _structs.RouterConfig,
}
LIBRARY = Path(os.environ.get("MEGAMOE_LIBRARY") or Path(megamoe.__file__).with_name("libmegamoe.so"))


def header_text():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def test_every_struct_of_the_header_is_bound():
    declared = set(re.findall(r"typedef struct (megamoe_\w+) \{", header_text()))
    assert declared == set(STRUCTS)


def test_every_function_of_the_header_is_bound():
    declared = set(re.findall(r"MEGAMOE_API[^;(]*?\b(megamoe_\w+)\(", header_text()))
    assert declared == set(_structs.FUNCTIONS)


def test_functions_have_as_many_arguments_as_the_header_says():
    for name, arguments in re.findall(r"MEGAMOE_API[^;(]*?\b(megamoe_\w+)\(([^;]*)\);", header_text()):
        count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        assert len(_structs.FUNCTIONS[name][1]) == count, name


def test_structs_have_the_compilers_layout(tmp_path):
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "megamoe/megamoe.h"', "int main(void) {"]
    expected = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for member, *_ in struct._fields_:
            place = f"offsetof({name}, {member}), sizeof((({name}*)0)->{member})"
            lines.append(f'printf("{name}.{member} %zu %zu\\n", {place});')
            descriptor = getattr(struct, member)
            expected.append(f"{name}.{member} {descriptor.offset} {descriptor.size}")
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", header_text(), re.DOTALL).group(1)
        assert body.count(";") == len(struct._fields_), name
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "return 0; }"]))
    program = tmp_path / "layout"
    subprocess.run(["cc", f"-I{HEADER.parents[1]}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_constants_are_the_headers():
    numbers = dict(re.findall(r"\b(MEGAMOE_\w+) = (\d+)", header_text()))
    names = {
        "float32": "FLOAT32", "bfloat16": "BFLOAT16", "float8_e4m3fn": "FLOAT8_E4M3FN", "float8_e8m0fnu": "FLOAT8_E8M0",
        "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    }  # fmt: skip
    assert {name: int(numbers[f"MEGAMOE_{names[name]}"]) for name in _structs.DTYPES} == _structs.DTYPES
    layouts = {name: int(numbers[f"MEGAMOE_W13_{name.upper()}"]) for name in _structs.W13_LAYOUTS}
    assert layouts == _structs.W13_LAYOUTS
    formats = {name: int(numbers[f"MEGAMOE_SCALE_{name.upper()}"]) for name in _structs.SCALE_FORMATS}
    assert formats == _structs.SCALE_FORMATS
    scorings = {name: int(numbers[f"MEGAMOE_SCORING_{name.upper()}"]) for name in _structs.SCORINGS}
    assert scorings == _structs.SCORINGS


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " must not be needed")
sys.meta_path.insert(0, Block())
"""


def test_import_needs_no_numpy_and_no_torch():
    done = python(
        BLOCK.format(blocked={"numpy", "ml_dtypes", "torch", "cupy"}) + "import megamoe\nprint(megamoe.__version__)\n"
        "megamoe.MoELayer(hidden=128, intermediate=64, num_experts=2, top_k=1, max_tokens_per_rank=4).close()"
    )
    assert (done.returncode, done.stdout.strip()) == (0, megamoe.__version__), done.stderr


def test_import_loads_no_third_party_module():
    done = python(
        "import sys, megamoe\nprint(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    assert done.returncode == 0, done.stderr
    loaded = set(eval(done.stdout)) - {
        "__main__",
        "megamoe",
        "sitecustomize",
        "_distutils_hack",
        "distutils-precedence",
    }
    assert not {name for name in loaded if not name.startswith("__editable__")}


def test_numpy_without_ml_dtypes_can_run_a_layer():
    code = BLOCK.format(blocked={"ml_dtypes"}) + (
        "import megamoe, numpy as np\n"
        "layer = megamoe.MoELayer(top_k=1, max_tokens_per_rank=2, w13_layout='gate_up', scale_format='float32',\n"
        "  w13=megamoe.typed(np.full((2, 128, 128), 0x38, np.uint8), 'float8_e4m3fn'),\n"
        "  w13_scale=np.full((2, 2, 1, 1), 1 / 128, np.float32),\n"
        "  w2=megamoe.typed(np.full((2, 128, 64), 0x38, np.uint8), 'float8_e4m3fn'),\n"
        "  w2_scale=np.full((2, 1, 1), 1 / 64, np.float32))\n"
        "tokens = megamoe.typed(np.full((2, 128), 0x3f80, np.uint16), 'bfloat16')\n"
        "ids, weights = np.array([[0], [1]]), np.ones((2, 1), np.float32)\n"
        "try:\n  layer(tokens, ids, weights)\nexcept ValueError as error:\n  print(error)\n"
        "out = layer(tokens, ids, weights, output=megamoe.typed(np.zeros((2, 128), np.uint16), 'bfloat16'))\n"
        "print(hex(out.min()), hex(out.max()))\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    refusal, values = done.stdout.splitlines()
    assert "output must be given where ml_dtypes is not installed" in refusal
    assert values == "0x3f3b 0x3f3b"  # silu(1) = 0.731


def test_a_missing_library_is_an_import_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGAMOE_LIBRARY", str(tmp_path / "libmegamoe.so"))
    done = python("import megamoe")
    assert done.returncode != 0 and "ImportError: megamoe: the library must be loadable from" in done.stderr
    assert "pip install ." in done.stderr


def test_the_library_needs_only_the_c_library():
    needed = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True, text=True).stdout
    names = set(re.findall(r"NEEDED.*\[(.*?)\]", needed))
    # A build with CUDA has its runtime inside; that one asks for the parts of glibc by their old names.
    assert names <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0", "librt.so.1"}


def test_the_library_exports_only_the_c_interface():
    symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[2].partition("@")[0] for line in symbols.splitlines() if line.split()[1] != "A"}
    assert exported == set(_structs.FUNCTIONS)


def test_the_package_is_typed():
    assert Path(megamoe.__file__).with_name("py.typed").exists()
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", support.ROOT / "pyproject.toml"],
        cwd=support.ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_has_a_docstring():
    for name in megamoe.__all__:
        if name != "__version__":
            assert getattr(megamoe, name).__doc__, name
    for name, member in [*vars(megamoe.MoELayer).items(), *vars(megamoe.Checkpoint).items()]:
        if callable(member) and not name.startswith("_"):
            assert member.__doc__, name
    for name in megamoe.routing.__all__:
        assert getattr(megamoe.routing, name).__doc__, name
