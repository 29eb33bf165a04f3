"""Every kind of failure reaches Python as the builtin that fits, with the library's sentence."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest

import megamoe
import support

SIZES = {"hidden": 256, "intermediate": 128, "num_experts": 8, "top_k": 2, "max_tokens_per_rank": 16}


@contextlib.contextmanager
def raises(kind, code, match):
    with pytest.raises(kind, match=match) as caught:
        yield
    assert isinstance(caught.value, megamoe.MegamoeError) and caught.value.code == code


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden": 7100}, r"moe_layer\.create: hidden must be a positive multiple of 128 .*got 7100; pad it to 7168"),
        ({"intermediate": 100}, "intermediate must be a positive multiple of 64"),
        ({"num_experts": 2000}, "num_experts must be between 1 and 1024, got 2000"),
        ({"top_k": 0}, "top_k must be between 1 and"),
        ({"top_k": -1}, "top_k must be between 0 and 4294967295, got -1"),
        ({"top_k": "2"}, "top_k must be a whole number, got '2'"),
        ({"max_tokens_per_rank": 0}, "max_tokens_per_rank must be at least 1"),
        ({"swiglu_clamp": 0.0}, r"swiglu_clamp must be greater than 0, got 0\.0"),
        ({"timeout": -1.0}, "timeout must be a number of seconds"),
        ({"backend": "tpu"}, "tpu"),
    ],
)
def test_invalid_argument_is_a_value_error(change, sentence):
    with raises(ValueError, "invalid_argument", sentence):
        megamoe.MoELayer(**SIZES | change)


def test_experts_that_the_ranks_cannot_share():
    with raises(ValueError, "invalid_argument", r"num_experts must be divisible by the number of ranks, got 8 .* on 3"):
        support.on_ranks(3, lambda group: megamoe.MoELayer(**SIZES, group=group))


@pytest.mark.parametrize("num_ranks", [0, 73, 1 << 31, -1])
def test_groups_have_1_to_72_ranks(num_ranks):
    with raises(ValueError, "invalid_argument", "num_ranks must be (1 to 72|between 0 and)"):
        megamoe.thread_group(num_ranks)


def test_ranks_with_other_configurations():
    with raises(ValueError, "invalid_argument", "all ranks must be given the same configuration"):
        support.on_ranks(2, lambda group: megamoe.MoELayer(**SIZES | {"hidden": 256 * (1 + group.rank)}, group=group))


def test_a_rank_that_cannot_be_created_stops_the_others():
    def rank(group):
        try:
            megamoe.MoELayer(**SIZES | {"top_k": "two" if group.rank == 1 else 2}, group=group)
        except Exception as error:
            return error

    first, second = support.on_ranks(2, rank)
    assert isinstance(second, ValueError) and not isinstance(second, megamoe.PeerFailedError)
    assert isinstance(first, ConnectionError) and "rank 1 failed" in str(first)


def test_not_supported_is_a_not_implemented_error(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    with raises(NotImplementedError, "not_supported", "RANK"):
        megamoe.process_group()


def test_out_of_memory_is_a_memory_error():
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\nimport megamoe\n"
        "try:\n  megamoe.MoELayer(hidden=7168, intermediate=128, num_experts=8, top_k=2, max_tokens_per_rank=1 << 20)\n"
        "except MemoryError as error:\n  print(error.code, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("out_of_memory "), done.stdout + done.stderr
    assert "bytes" in done.stdout


def test_a_rank_that_does_not_come_is_a_timeout_and_poisons():
    data = support.Layer()
    left = threading.Event()

    def rank(group):
        layer = data.make(group)
        if group.rank == 1:
            left.wait(60)
        else:
            with raises(TimeoutError, "timeout", "rank 0.*1"):
                layer(data.tokens, data.ids, data.weights, timeout=0.3)
            with raises(RuntimeError, "poisoned", r"call reset\(\) on every rank"):
                layer(data.tokens, data.ids, data.weights)
            left.set()
        layer.reset()
        output = layer(data.tokens, data.ids, data.weights)
        layer.close()
        return output

    for output in support.on_ranks(2, rank):
        support.assert_close(output, data.expected())


def test_creation_without_the_other_rank_is_a_timeout():
    groups = megamoe.thread_group(2)
    with raises(TimeoutError, "timeout", "1"):
        megamoe.MoELayer(**SIZES, group=groups[0], timeout=0.3)


DYING = """
import os, sys, time
sys.path[:0] = {path!r}
import support, megamoe
group = megamoe.process_group(1, 2, name={name!r}, rendezvous_dir={folder!r}, timeout=60)
layer = support.Layer().make(group)
print("ready", flush=True)
sys.stdin.readline()
os._exit(3)
"""


def test_the_death_of_a_process_is_a_connection_error(tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir(mode=0o700)
    name = f"dying-{tmp_path.name}"
    script = DYING.format(path=[p for p in sys.path if p], name=name, folder=str(folder))
    peer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        group = megamoe.process_group(0, 2, name=name, rendezvous_dir=str(folder), timeout=60)
        data = support.Layer()
        layer = data.make(group)
        assert peer.stdout.readline() == "ready\n"
        killer = threading.Timer(0.2, lambda: (peer.stdin.write("\n"), peer.stdin.flush()))
        killer.start()
        started = time.monotonic()
        with raises(ConnectionError, "peer_failed", r"rank 1 \(pid"):
            layer(data.tokens, data.ids, data.weights)
        assert time.monotonic() - started < 10
        layer.close()
    finally:
        peer.stdin.close()
        assert peer.wait(60) == 3


def test_a_closed_layer_and_a_closed_group_say_so():
    data = support.Layer()
    layer = data.make()
    layer.close()
    layer.close()
    with raises(ValueError, "invalid_argument", "the layer must be open, and it was closed"):
        layer(data.tokens, data.ids, data.weights)
    group = megamoe.thread_group(1)[0]
    assert (group.rank, group.num_ranks) == (0, 1)
    group.close()
    with raises(ValueError, "invalid_argument", "the group must be open"):
        megamoe.MoELayer(**SIZES, group=group)


def test_log_messages_reach_python():
    seen = []
    megamoe.set_log_callback(lambda level, message: seen.append((level, message)))
    try:
        megamoe.MoELayer(**SIZES).close()
    finally:
        megamoe.set_log_callback(None)
    assert any(level == "info" and "bytes of workspace" in message for level, message in seen)
    count = len(seen)
    megamoe.MoELayer(**SIZES).close()
    assert len(seen) == count


def test_run_ranks_raises_a_ranks_own_error():
    def rank(group):
        if group.rank == 1:
            raise KeyError("mine")
        raise megamoe.PeerFailedError("theirs")

    with pytest.raises(KeyError, match="mine"):
        support.on_ranks(2, rank)
