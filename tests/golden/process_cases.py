"""Cases of ranks as processes: the same bits as threads, launchers' variables, and ranks that are killed."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tool import FP8_RUN, ROOT, Answer, Program

LONG_RUN = ["run", "--model", "tiny", "--ranks", "4", "--tokens", "50000", "--check", "none", "--processes"]


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def start(program: Program, arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEGAMOE_")}
    meeting = {"TMPDIR": str(folder), "MEGAMOE_RENDEZVOUS": str(folder)}
    env = kept | {"MEGAMOE_SIMD": "scalar", "LC_ALL": "C"} | meeting | environment
    return subprocess.Popen(
        [program.path, *arguments], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> Answer:
    stdout, stderr = process.communicate(timeout=120)
    return Answer(process.returncode, stdout, stderr)


def private_folder(folder: Path) -> Path:
    place = folder / "meeting"
    place.mkdir(mode=0o700)
    return place


def torchrun(rank: int, size: int, group: str) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "localhost", "MASTER_PORT": group}


def mpirun(rank: int, size: int, group: str) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "SIZE": size, "LOCAL_SIZE": size}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()} | {"PMIX_NAMESPACE": group}


def one_sentence(answer: Answer, code: int, words: str) -> None:
    check(answer.code == code and answer.stdout == "", f"expected exit {code} and no output: {answer}")
    check(answer.stderr.count("\n") == 1 and answer.stderr.startswith("error: "), f"one sentence: {answer}")
    check(words in answer.stderr, f"{words!r} is not in {answer.stderr!r}")


def without_transport(found: dict) -> dict:
    return {key: value for key, value in found.items() if key not in ("time_us", "transport")}


def processes_give_what_threads_give(program: Program, folder: Path) -> None:
    place = private_folder(folder)
    runs = {ranks: [*FP8_RUN, "--compare", "routed_out_fp32_dequant_weights", "--ranks", ranks] for ranks in "124"}
    runs["uneven"] = ["run", "--model", "tiny", "--ranks", "4", "--tokens", "0,90,1,30", "--check", "rows:9"]
    hashes = set()
    for name, arguments in runs.items():
        threads = program.run([*arguments, "--json"])
        processes = finish(start(program, [*arguments, "--processes", "--json"], place))
        check(threads.code == 0 and processes.code == 0 and processes.stderr == "", f"{name}: {threads} {processes}")
        check(processes.json()["transport"] == "processes", f"{name}: {processes}")
        check(without_transport(threads.json()) == without_transport(processes.json()), f"{name}: answers differ")
        if name != "uneven":
            hashes.add(processes.json()["output_hash"])
    check(len(hashes) == 1, f"hashes: {hashes}")
    check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")


def processes_fail_as_threads_do(program: Program, folder: Path) -> None:
    place = private_folder(folder)
    output = folder / "out.safetensors"
    base = [*FP8_RUN[:-1], str(folder / "id_99.safetensors"), "--ranks", "2", "--processes"]
    answer = finish(start(program, [*base, "--output", str(output)], place))
    one_sentence(answer, 2, "99")
    check(not output.exists(), "a failed run must write nothing")
    one_sentence(finish(start(program, [*base[:-4], "nowhere", *base[-3:]], place)), 2, "nowhere")
    answer = finish(start(program, [*base, "--json"], place))
    check(answer.code == 2 and answer.stderr == "" and answer.json()["status"] == "bad_input", f"{answer}")
    answer = finish(start(program, [*FP8_RUN, "--compare", "hidden_states", "--ranks", "2", "--processes"], place))
    check(answer.code == 1 and answer.stderr.startswith("error: "), f"mismatch: {answer}")
    check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")


def launched_ranks(program: Program, folder: Path) -> None:
    """Two groups at a time, one of each launcher, that must not meet."""
    place = private_folder(folder)
    expected = {
        seed: program.run(["run", "--model", "tiny", "--ranks", "2", "--seed", seed, "--json"]).json()
        for seed in ("5", "6")
    }
    groups = {
        seed: [
            start(program, ["run", "--model", "tiny", "--seed", seed, "--json"], place, **variables(rank, 2, "29501"))
            for rank in (1, 0)
        ]
        for seed, variables in (("5", torchrun), ("6", mpirun))
    }
    for seed, (second, first) in groups.items():
        first_answer, second_answer = finish(first), finish(second)
        check(first_answer.code == 0, f"rank 0: {first_answer}")
        check(second_answer == Answer(0, "", ""), f"rank 1 must be silent: {second_answer}")
        found = first_answer.json()
        check(without_transport(found) == without_transport(expected[seed]), f"seed {seed}: {found}")
    check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")


def launcher_variables(program: Program, folder: Path) -> None:
    place = private_folder(folder)
    run = ["run", "--model", "tiny"]

    def both(words: str, arguments: tuple[list[str], list[str]], variables: tuple[dict, dict]) -> None:
        processes = [start(program, a, place, **v) for a, v in zip(arguments, variables, strict=True)]
        for process in processes:
            one_sentence(finish(process), 2, words)

    full = (torchrun(0, 2, "1"), torchrun(1, 2, "1"))
    for missing in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        part = {name: value for name, value in full[0].items() if name != missing}
        one_sentence(finish(start(program, run, place, **part)), 2, missing)
    part = {name: value for name, value in mpirun(0, 2, "1").items() if not name.endswith("_RANK")}
    one_sentence(finish(start(program, run, place, **part)), 2, "OMPI_COMM_WORLD_RANK")
    both("LOCAL_WORLD_SIZE", (run, run), tuple(v | {"LOCAL_WORLD_SIZE": "1"} for v in full))
    both("each rank must be one process", (run, run), (torchrun(0, 2, "2"), torchrun(0, 2, "2")))
    both("--ranks", ([*run, "--ranks", "4"], [*run, "--ranks", "4"]), full)
    both("--processes", ([*run, "--processes"], [*run, "--processes"]), full)
    both("the same options", (run, [*run, "--tokens", "8"]), (torchrun(0, 2, "3"), torchrun(1, 2, "3")))
    both("--tokens", (run, [*run, "--tokens", "x"]), (torchrun(0, 2, "4"), torchrun(1, 2, "4")))
    alone = finish(start(program, [*run, "--timeout-ms", "300"], place, **torchrun(0, 2, "5")))
    one_sentence(alone, 3, "rank 1")
    check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")


def children_of(pid: int, count: int) -> list[int]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(found) == count:
            return [int(child) for child in found]
        time.sleep(0.01)
    raise AssertionError(f"process {pid} did not start {count} ranks")


def all_gone(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def killed_rank(program: Program, folder: Path) -> None:
    place = private_folder(folder)
    for rank, delay in ((0, 0.0), (1, 0.3), (3, 1.5)):
        run = start(program, LONG_RUN, place)
        ranks = children_of(run.pid, 4)
        time.sleep(delay)
        check(run.poll() is None, "the run must still be under way, or nothing is tested")
        os.kill(ranks[rank], signal.SIGKILL)
        killed_at = time.monotonic()
        answer = finish(run)
        check(time.monotonic() - killed_at < 3, f"rank {rank} after {delay} s: reported too late")
        one_sentence(answer, 3, f"rank {rank} (pid {ranks[rank]}) was killed by signal 9")
        check(all_gone(ranks, 0), f"processes {ranks} are left")
        check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")


def killed_parent(program: Program, folder: Path) -> None:
    place = private_folder(folder)
    for number in (signal.SIGKILL, signal.SIGTERM):
        run = start(program, LONG_RUN, place)
        ranks = children_of(run.pid, 4)
        time.sleep(0.5)
        run.send_signal(number)
        answer = finish(run)
        check(answer == Answer(-number, "", ""), f"{number}: {answer}")
        check(all_gone(ranks, 3), f"{number}: processes {ranks} are left")
        if number == signal.SIGTERM:
            check(not list(place.iterdir()), f"left behind: {list(place.iterdir())}")
        for left in place.iterdir():  # Only where it was killed before its ranks had met.
            with suppress(OSError):
                left.rmdir()


PROCESS_CASES = {
    function.__name__: function
    for function in (
        processes_give_what_threads_give,
        processes_fail_as_threads_do,
        launched_ranks,
        launcher_variables,
        killed_rank,
        killed_parent,
    )
}
