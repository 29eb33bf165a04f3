"""Writes (or checks) expected_formats.csv: what ml_dtypes says about the number formats that the oracle builds itself.

make_tables.py FILE          writes FILE
make_tables.py --check FILE  regenerates and compares; exit 0 equal, 1 different, 77 numpy or ml_dtypes is not installed

Each line is kind,input bits,output bits in hexadecimal; floats are FP32 bits. ml_dtypes does not saturate, so FP8
inputs are clipped to the largest number first; a NaN is expected as the code 0x7f whatever its sign (docs/numerics.md).
"""

import sys

SKIPPED = 77

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}; set MEGAMOE_PYTHON to an interpreter with numpy and ml_dtypes")
    sys.exit(SKIPPED)

NUM_RANDOM = 500
NAN_BITS = 0x7FC00000
# Zeros, subnormal numbers and their border, the largest numbers, infinities, three NaN, ones.
SPECIAL_BITS = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF]
SPECIAL_BITS += [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x3F800000, 0xBF800000]


def splitmix64(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def bits_of(values: "np.ndarray") -> list[int]:
    return [int(b) for b in np.asarray(values, dtype=np.float32).view(np.uint32)]


def from_bits(bits: list[int]) -> "np.ndarray":
    return np.array(bits, dtype=np.uint32).view(np.float32)


def decode_all(kind: str, dtype: type) -> list[str]:
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    lines = []
    for code, (value, bits) in enumerate(zip(values, bits_of(values))):
        lines.append(f"{kind},{code:02x},{NAN_BITS if np.isnan(value) else bits:08x}")
    return lines


def around_midpoints(numbers: "np.ndarray") -> list[int]:
    """Each number, each midpoint of neighbours and the FP32 numbers next to that midpoint, with both signs."""
    numbers = np.unique(numbers.astype(np.float64))
    middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    points = np.concatenate([numbers.astype(np.float32), middle, *beside])
    return bits_of(np.concatenate([points, -points]))


def random_bits(seed: int, low_exponent: int, high_exponent: int) -> list[int]:
    """FP32 bits whose biased exponents cover [low_exponent, high_exponent) evenly."""
    bits = []
    for i in range(NUM_RANDOM):
        draw = splitmix64((seed << 32) + i)
        exponent = low_exponent + (draw >> 40) % (high_exponent - low_exponent)
        bits.append(((draw >> 39) & 1) << 31 | exponent << 23 | draw & 0x7FFFFF)
    return bits


def encode_fp8(kind: str, dtype: type, largest: float, inputs: list[int]) -> list[str]:
    lines = []
    for bits, value in zip(inputs, from_bits(inputs)):
        if np.isnan(value):
            code = 0x7F
        else:
            clipped = np.clip(value, np.float32(-largest), np.float32(largest))
            code = int(np.array([clipped], dtype=np.float32).astype(dtype).view(np.uint8)[0])
        lines.append(f"{kind},{bits:08x},{code:02x}")
    return lines


def encode_bf16(inputs: list[int]) -> list[str]:
    inputs = [bits for bits, value in zip(inputs, from_bits(inputs)) if not np.isnan(value)]
    codes = from_bits(inputs).astype(ml_dtypes.bfloat16).view(np.uint16)
    return [f"bf16_encode,{bits:08x},{int(code):04x}" for bits, code in zip(inputs, codes)]


def bf16_inputs() -> list[int]:
    """FP32 patterns around the ties of BF16 patterns spread over the whole range."""
    inputs = []
    for upper in list(range(0, 0x7F80, 331)) + [0x0001, 0x007F, 0x0080, 0x7F7F]:
        inputs += [upper << 16 | lower for lower in (0x0000, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    return inputs + [bits | 0x80000000 for bits in inputs[::7]] + random_bits(3, 0, 255)


def table() -> str:
    lines = []
    for kind, dtype, largest, seed in (
        ("e4m3", ml_dtypes.float8_e4m3fn, 448.0, 1),
        ("e5m2", ml_dtypes.float8_e5m2, 57344.0, 2),
    ):
        lines += decode_all(f"{kind}_decode", dtype)
        values = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float64)
        inputs = around_midpoints(values[np.isfinite(values)]) + SPECIAL_BITS + random_bits(seed, 105, 145)
        lines += encode_fp8(f"{kind}_encode", dtype, largest, inputs)
    lines += decode_all("ue8m0_decode", ml_dtypes.float8_e8m0fnu)
    lines += encode_bf16(SPECIAL_BITS + bf16_inputs())
    return "\n".join(lines) + "\n"


def main() -> int:
    check = sys.argv[1:2] == ["--check"]
    paths = sys.argv[2:] if check else sys.argv[1:]
    if len(paths) != 1:
        print(__doc__)
        return 2
    if not check:
        with open(paths[0], "w", encoding="ascii") as file:
            file.write(table())
        return 0
    with open(paths[0], encoding="ascii") as file:
        stored = file.read()
    fresh = table()
    if fresh == stored:
        print(f"{fresh.count(chr(10))} values equal, ml_dtypes {ml_dtypes.__version__}")
        return 0
    differing = sum(a != b for a, b in zip(fresh.splitlines(), stored.splitlines()))
    print(f"{paths[0]} differs from what ml_dtypes {ml_dtypes.__version__} says in {differing} of its lines")
    return 1


if __name__ == "__main__":
    sys.exit(main())
