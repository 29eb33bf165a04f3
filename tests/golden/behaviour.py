"""Cases judged by a rule instead of a kept text: each is a function of the program and a scratch folder."""

import json
import re
import struct
from pathlib import Path

from tool import BF16_RUN, FIXTURES, FP8_RUN, ROOT, Program, read_safetensors, write_safetensors

IO_FILE = "moe_layer_io.safetensors"


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def same_bits_on_any_ranks(program: Program, base: list[str], oracle: float, worst: float, mean: float) -> None:
    hashes = {}
    for ranks in (1, 2, 4, 8):
        answer = program.run([*base, "--ranks", str(ranks), "--check", "all", "--json"])
        check(answer.code == 0, f"{ranks} ranks: exit {answer.code}\n{answer.stdout}{answer.stderr}")
        found = answer.json()
        error = found["error"]
        check(found["status"] == "ok" and found["ranks"] == ranks, f"{ranks} ranks: {found}")
        check(len(found["tokens_per_rank"]) == ranks and sum(found["tokens_per_rank"]) == 123, f"tokens: {found}")
        check(max(found["tokens_per_rank"]) - min(found["tokens_per_rank"]) <= 1, f"tokens are not balanced: {found}")
        check(sum(found["rows_per_expert"]) == 123 * 4, f"rows: {found['rows_per_expert']}")
        check(error["oracle"]["rows_checked"] == 123, f"rows checked: {error}")
        check(error["oracle"]["max_row_rel_l2"] <= oracle, f"oracle: {error}")
        # Quantised tokens cannot agree with unquantised ones: a figure near zero would mean that nothing was compared.
        check(0.01 < error["compare"]["max_row_rel_l2"] <= worst, f"compare: {error}")
        check(0.01 < error["compare"]["mean_row_rel_l2"] <= mean, f"compare: {error}")
        hashes[ranks] = found["output_hash"]
    check(len(set(hashes.values())) == 1, f"the output depends on the number of ranks: {hashes}")


def fp8_fixture(program: Program, _folder: Path) -> None:
    same_bits_on_any_ranks(program, [*FP8_RUN, "--compare", "routed_out_fp32_dequant_weights"], 1e-2, 8e-2, 5e-2)


def bf16_fixture(program: Program, _folder: Path) -> None:
    same_bits_on_any_ranks(program, [*BF16_RUN, "--compare", "experts_out"], 1e-2, 1.1e-1, 7.5e-2)


BLOCK_FIXTURES = {
    # Tokens and top-k of each folder that holds the output of a whole block.
    "deepseek_v3": (123, 4),
    "deepseek_v4_mxfp4": (40, 3),
    "glm4_moe": (40, 3),
    "glm4_moe_fp8": (40, 3),
    "llama4": (40, 1),
    "minimax_m2": (40, 2),
    "mixtral": (40, 2),
    "qwen2_moe": (40, 2),
    "qwen3_5_moe": (40, 2),
    "qwen3_moe": (40, 4),
}


def whole_blocks_of_every_family(program: Program, _folder: Path) -> None:
    """Router, routed and shared experts from tokens alone, against what transformers computed in FP32."""
    kept = {path.parent.name for path in FIXTURES.glob("*/moe_layer_io.safetensors")}
    with_output = {name for name in kept if "output_fp32" in read_safetensors(FIXTURES / name / IO_FILE)}
    check(with_output == set(BLOCK_FIXTURES), f"fixtures that hold output_fp32: {with_output}")
    for name, (tokens, top_k) in BLOCK_FIXTURES.items():
        folder = f"tests/fixtures/{name}"
        base = ["run", "--checkpoint", folder, "--layer", "1", "--inputs", f"{folder}/{IO_FILE}", "--check", "all"]
        hashes = set()
        for extra in (["--ranks", "1"], ["--ranks", "2"], ["--ranks", "2", "--processes"]):
            answer = program.run([*base, *extra, "--json"])
            check(answer.code == 0, f"{name} {extra}: exit {answer.code}\n{answer.stdout}{answer.stderr}")
            found = answer.json()
            compare = found["error"]["compare"]
            check(found["part"] == "block" and compare["tensor"] == "output_fp32", f"{name}: {found}")
            worst, mean = (8e-2, 5e-2) if name.endswith("fp8") else (1.1e-1, 7.5e-2)
            check(0.01 < compare["max_row_rel_l2"] <= worst, f"{name} {extra}: {compare}")
            check(0.01 < compare["mean_row_rel_l2"] <= mean, f"{name} {extra}: {compare}")
            check(found["error"]["oracle"]["rows_checked"] == tokens, f"{name}: {found['error']}")
            agreement = found["routing_agreement"]
            held = (tokens + 1) // 2 if "--processes" in extra else tokens
            check(agreement == {"tokens": held, "equal": held}, f"{name} {extra}: the router chose others: {agreement}")
            check(sum(found["rows_per_expert"]) == tokens * top_k, f"{name}: {found['rows_per_expert']}")
            hashes.add(found["output_hash"])
        check(len(hashes) == 1, f"{name}: the output depends on the number of ranks: {hashes}")


def bf16_values(data: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def weights_on_the_input_are_not_weights_on_the_output(program: Program, folder: Path) -> None:
    """Llama-4 with a routing from the file: twice the weight is the gate's bend of twice the token."""
    tensors = read_safetensors(FIXTURES / "llama4" / IO_FILE)
    dtype, shape, weights = tensors["topk_weights"]
    outputs = []
    for factor in (1.0, 2.0):
        values = [factor * value for value in struct.unpack(f"<{len(weights) // 4}f", weights)]
        inputs, output = folder / f"in_{factor}.safetensors", folder / f"out_{factor}.safetensors"
        write_safetensors(inputs, tensors | {"topk_weights": (dtype, shape, struct.pack(f"<{len(values)}f", *values))})
        command = ["run", "--checkpoint", "tests/fixtures/llama4", "--layer", "1", "--part", "routed", "--json"]
        answer = program.run([*command, "--inputs", str(inputs), "--output", str(output), "--compare", "hidden_states"])
        check(any("weight is put on the input" in note for note in answer.json()["notes"]), f"{answer}")
        outputs.append(bf16_values(read_safetensors(output)["output"][2]))
    linear = [2 * value for value in outputs[0]]
    difference = sum((a - b) ** 2 for a, b in zip(outputs[1], linear, strict=True)) ** 0.5
    size = sum(value**2 for value in linear) ** 0.5
    check(difference > 0.2 * size, f"the output is linear in the weight: {difference} of {size}")


def tokens_alone_give_the_same_block(program: Program, folder: Path) -> None:
    for name in ("glm4_moe", "deepseek_v4_mxfp4"):
        whole = FIXTURES / name / IO_FILE
        tensors = read_safetensors(whole)
        alone = folder / f"{name}.safetensors"
        write_safetensors(alone, {"hidden_states": tensors["hidden_states"]})
        base = ["run", "--checkpoint", f"tests/fixtures/{name}", "--layer", "1", "--json", "--inputs"]
        with_routing, without = program.run([*base, str(whole)]).json(), program.run([*base, str(alone)]).json()
        check(without["part"] == "block" and without["routing_agreement"] is None, f"{without}")
        check(without["output_hash"] == with_routing["output_hash"], f"{name}: the file's routing was used")


def random_layer_is_the_same_on_any_ranks(program: Program, _folder: Path) -> None:
    hashes = set()
    for ranks, tokens in ((1, "16"), (2, "8"), (4, "4"), (4, "0,5,11,0"), (8, "2"), (16, "1")):
        arguments = ["run", "--model", "tiny", "--ranks", str(ranks), "--tokens", tokens, "--seed", "7", "--json"]
        answer = program.run(arguments)
        check(answer.code == 0, f"{arguments}: {answer}")
        hashes.add(answer.json()["output_hash"])
    check(len(hashes) == 1, f"outputs differ: {hashes}")
    other = program.run(["run", "--model", "tiny", "--tokens", "16", "--seed", "8", "--json"]).json()
    check(other["output_hash"] not in hashes, "another seed must give another layer")


def settings_that_never_change_a_result(program: Program, _folder: Path) -> None:
    hashes = set()
    for extra in ([], ["--block-rows", "8"], ["--block-rows", "64"], ["--threads", "3"]):
        hashes.add(program.run([*FP8_RUN, "--ranks", "2", "--json", *extra]).json()["output_hash"])
    for level in program.run(["doctor", "--json"]).json()["cpu"]["usable_simd"]:
        answer = program.run([*FP8_RUN, "--ranks", "2", "--json"], MEGAMOE_SIMD=level).json()
        check(answer["simd"] == level, f"level {level} was not used: {answer['simd']}")
        check(answer["status"] == "ok", f"level {level}: {answer}")
    check(len(hashes) == 1, f"outputs differ: {hashes}")


def output_file(program: Program, folder: Path) -> None:
    path = folder / "out.safetensors"
    path.write_text("replaced whole")
    arguments = ["run", "--model", "tiny", "--ranks", "2", "--tokens", "64", "--output", str(path), "--json"]
    found = program.run(arguments).json()
    check(found["output"] == str(path), f"output: {found['output']}")
    check(min(found["rows_per_expert"]) > 0, "every expert must be used, so that a NaN weight would be seen")
    dtype, shape, data = read_safetensors(path)["output"]
    check((dtype, shape) == ("BF16", [128, 512]), f"output is {dtype} {shape}")
    check(fnv1a(data) == found["output_hash"], "the hash is not that of the file")
    values = struct.unpack(f"<{len(data) // 2}H", data)
    check(all(value & 0x7F80 != 0x7F80 for value in values), "the output holds NaN or infinity")
    check(len(set(values)) > 1000, "the output is not random")
    check([p.name for p in folder.iterdir() if "out.safetensors" in p.name] == ["out.safetensors"], "left-over file")


def failed_run_writes_nothing(program: Program, folder: Path) -> None:
    path = folder / "kept.safetensors"
    path.write_text("as it was")
    inputs = str(folder / "id_99.safetensors")
    answer = program.run([*FP8_RUN[:-1], inputs, "--ranks", "2", "--output", str(path)])
    check(answer.code == 2, f"exit {answer.code}")
    check(path.read_text() == "as it was", "the output file was touched")


def routings(program: Program, _folder: Path) -> None:
    base = ["run", "--model", "tiny", "--ranks", "4", "--tokens", "32", "--json", "--routing"]
    rows = {
        how: program.run([*base, how]).json()["rows_per_expert"]
        for how in ("uniform", "zipf:2", "one-expert", "one-rank")
    }
    check(all(sum(counts) == 4 * 32 * 4 for counts in rows.values()), f"every slot must arrive: {rows}")
    check(sum(count > 0 for count in rows["one-expert"]) == 1, f"one-expert: {rows}")
    check(sum(rows["one-rank"][:4]) == 512 and min(rows["one-rank"][:4]) > 0, f"one-rank: {rows}")
    check(min(rows["uniform"]) > 0 and max(rows["uniform"]) <= 64, f"uniform: {rows}")
    check(max(rows["zipf:2"]) > 100 and max(rows["zipf:2"]) <= 128, f"zipf: {rows}")


def sampled_rows(program: Program, _folder: Path) -> None:
    base = ["run", "--model", "tiny", "--ranks", "4", "--tokens", "40,0,1,9", "--json"]
    for wanted, expected in (("rows:7", 7), ("rows:50", 50), ("rows:999", 50), ("all", 50)):
        oracle = program.run([*base, "--check", wanted]).json()["error"]["oracle"]
        check(oracle["rows_checked"] == expected, f"--check {wanted}: {oracle}")
        check(oracle["max_row_rel_l2"] <= 1e-2, f"--check {wanted}: {oracle}")


def no_tokens_at_all(program: Program, _folder: Path) -> None:
    found = program.run(["run", "--model", "tiny", "--ranks", "4", "--tokens", "0", "--json"])
    check(found.code == 0, f"{found}")
    oracle = found.json()["error"]["oracle"]
    check(oracle["rows_checked"] is None and oracle["max_row_rel_l2"] is None, f"nothing was checked: {oracle}")


def every_listed_model_can_be_planned(program: Program, _folder: Path) -> None:
    models = program.run(["models", "--json"]).json()["models"]
    check(len(models) >= 20, f"only {len(models)} models")
    for model in models:
        answer = program.run(["plan", "--model", model["name"], "--json"])
        check(answer.code == (0 if model["supported"] else 2), f"{model['name']}: {answer}")
        if model["supported"]:
            plan = answer.json()
            check(plan["shape"] == model["shape"], f"{model['name']}: {plan['shape']}")
            check(sum(region["bytes"] for region in plan["regions"]) <= plan["workspace_bytes"], f"{model['name']}")
        else:
            check(model["refusal"] in answer.json()["error"]["message"], f"{model['name']}: {answer}")


def gemm_beside_openblas(program: Program, _folder: Path) -> None:
    command = ["bench", "--only", "gemm", "--repeat", "1", "--json"]
    answer = program.run(command, MEGAMOE_SIMD="auto")
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    check(answer.code == 0 and answer.stderr == "", f"{answer}")
    shapes = [(row["gemm"], row["rows"], row["columns"], row["depth"]) for row in rows]
    wanted = [(name, rows, 4096, depth) for rows in (64, 256) for name, depth in (("gemm1", 4096), ("gemm2", 2048))]
    check(shapes == wanted, f"{shapes}")
    for row in rows:
        check(row["bench"] == "gemm_vs_openblas" and row["gflops"] > 0 and row["threads"] >= 1, f"{row}")
        blas = row["openblas"]
        figures = [blas["core"], blas["median_us"], blas["gflops"], row["ratio"], row["disagreement"]]
        if blas["missing"] is None:
            check(None not in figures and row["disagreement"] < 1e-4, f"{row}")
        else:
            check("OpenBLAS is not installed" in blas["missing"] and set(figures) == {None}, f"{row}")
    never = program.run([*command, "--min-ratio", "100"], MEGAMOE_SIMD="auto")
    installed = rows[0]["openblas"]["missing"] is None
    check(never.code == (1 if installed else 2), f"no GEMM is 100 times as fast: {never}")
    statuses = {json.loads(line)["status"] for line in never.stdout.splitlines()}
    check(statuses == {"mismatch" if installed else "bad_input"}, f"{never}")


def readme_example_is_the_tested_file(_program: Program, _folder: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    example = (ROOT / "examples/01_one_rank_cpu.cc").read_text()
    blocks = re.findall(r"```cpp\n(.*?)```", readme, flags=re.DOTALL)
    check(bool(blocks) and blocks[0] == example, "the first C++ block of README.md must be examples/01_one_rank_cpu.cc")


def documented_options_exist(program: Program, _folder: Path) -> None:
    text = (ROOT / "docs/cli.md").read_text() + (ROOT / "README.md").read_text()
    helps = "".join(
        program.run([name, "--help"]).stdout for name in ("run", "plan", "inspect", "models", "bench", "doctor")
    )
    helps += program.run(["--help"]).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", helps))
    written = set()
    for line in re.findall(r"`megamoe[^`]*`|^megamoe .*$|^\| `--.*?\|", text, flags=re.MULTILINE):
        written |= set(re.findall(r"--[a-z][a-z-]*", line))
    check(len(written) >= 10, f"found only {written}")
    check(written <= known, f"documented but unknown: {sorted(written - known)}")


BEHAVIOUR_CASES = {
    function.__name__: function
    for function in (
        fp8_fixture,
        bf16_fixture,
        whole_blocks_of_every_family,
        tokens_alone_give_the_same_block,
        weights_on_the_input_are_not_weights_on_the_output,
        random_layer_is_the_same_on_any_ranks,
        settings_that_never_change_a_result,
        output_file,
        failed_run_writes_nothing,
        routings,
        sampled_rows,
        no_tokens_at_all,
        every_listed_model_can_be_planned,
        gemm_beside_openblas,
        readme_example_is_the_tested_file,
        documented_options_exist,
    )
}
