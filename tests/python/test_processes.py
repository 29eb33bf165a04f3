"""Ranks as processes: by launcher variables and by explicit ranks, with the bits of one rank."""

import os
import subprocess
import sys

import numpy as np
import pytest

import megamoe
import support

RANK = """
import sys
sys.path[:0] = {path!r}
import numpy as np, support, megamoe
group = megamoe.process_group({arguments})
data = support.Layer(num_tokens=10)
rows = slice(group.rank * 5, group.rank * 5 + 5)
with data.make(group) as layer:
    for _ in range(3):
        output = layer(data.tokens[rows], data.ids[rows], data.weights[rows])
np.save({folder!r} + f"/{{group.rank}}.npy", output.view(np.uint16))
"""


@pytest.mark.parametrize("how", ["launcher variables", "explicit ranks"])
def test_two_processes(how, tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir(mode=0o700)
    processes = []
    for rank in range(2):
        env = dict(os.environ, MEGAMOE_RENDEZVOUS=str(folder))
        arguments = f"{rank}, 2, name='py-{os.getpid()}', rendezvous_dir={str(folder)!r}, timeout=60"
        if how == "launcher variables":
            arguments = "timeout=60"
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
        script = RANK.format(path=[p for p in sys.path if p], arguments=arguments, folder=str(tmp_path))
        processes.append(subprocess.Popen([sys.executable, "-c", script], env=env))
    assert [process.wait(120) for process in processes] == [0, 0]
    data = support.Layer(num_tokens=10)
    with data.make() as layer:
        alone = layer(data.tokens, data.ids, data.weights).view(np.uint16)
    assert np.array_equal(np.concatenate([np.load(tmp_path / f"{rank}.npy") for rank in range(2)]), alone)


def test_rank_and_num_ranks_belong_together():
    with pytest.raises(ValueError, match="rank and num_ranks must be given together, got 1 and None"):
        megamoe.process_group(1)
    with pytest.raises(ValueError, match="num_ranks must be at least 1, got 0"):
        megamoe.process_group(0, 0)


def test_a_missing_process_is_a_timeout_that_names_it(tmp_path):
    folder = tmp_path / "meet"
    folder.mkdir(mode=0o700)
    with pytest.raises(TimeoutError, match="rank.* 1"):
        megamoe.process_group(0, 2, name="alone", rendezvous_dir=str(folder), timeout=0.3)
