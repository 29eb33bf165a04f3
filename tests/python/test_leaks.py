"""What is created is given back: memory, descriptors, threads and files, also where creation fails or nobody closes."""

import gc
import os
import threading
import time

import pytest

import megamoe
import support

SIZES = {"hidden": 256, "intermediate": 128, "num_experts": 8, "top_k": 2, "max_tokens_per_rank": 64}


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def held():
    """Open descriptors, names in /dev/shm, threads."""
    shared = len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0
    return len(os.listdir("/proc/self/fd")), shared, threading.active_count()


def rounds(count, one):
    """Runs `one` count times; checks what is held and how much memory is resident after round 5 and at the end."""
    before = held()
    for done in range(1, count + 1):
        one()
        if done == 5:
            gc.collect()
            early = resident_mib()
    gc.collect()
    assert held() == before
    assert resident_mib() - early <= 10


def test_two_hundred_layers_on_two_ranks():
    data = support.Layer()

    def rank(group):
        with data.make(group) as layer:
            layer(data.tokens, data.ids, data.weights)

    rounds(200, lambda: support.on_ranks(2, rank))


def test_fifty_creations_that_fail_on_one_rank():
    def rank(group):
        with pytest.raises((ValueError, ConnectionError)):
            megamoe.MoELayer(**SIZES | {"top_k": 0 if group.rank == 1 else 2}, group=group)

    rounds(50, lambda: support.on_ranks(2, rank))


def test_thirty_two_sets_of_weights_in_one_layer():
    """One workspace for all layers of a model: the sets of weights are the caller's memory, not the layer's."""
    data = support.Layer()
    sets = [support.Layer(seed=seed) for seed in range(32)]
    want = [one.expected() for one in sets[:3]]
    with data.make() as layer:
        layer(data.tokens, data.ids, data.weights)
        before = resident_mib()
        for index, one in enumerate(sets):
            layer.load_weights(**one.share(0, 1), w13_layout="gate_up", scale_format="float32")
            output = layer(one.tokens, one.ids, one.weights)
            if index < 3:
                support.assert_close(output, want[index])
        gc.collect()
        assert resident_mib() - before <= 10


def test_layers_that_nobody_closes_go_with_their_last_reference():
    data = support.Layer()

    def rank(group):
        data.make(group)(data.tokens, data.ids, data.weights)

    def one():
        support.on_ranks(2, rank)
        deadline = time.monotonic() + 30
        while any(thread.name == "megamoe-close" for thread in threading.enumerate()) and time.monotonic() < deadline:
            time.sleep(0.001)

    rounds(30, one)


def test_layers_of_thread_ranks_held_by_one_list_go_without_waiting():
    data = support.Layer()
    layers = support.on_ranks(2, lambda group: data.make(group))
    started = time.monotonic()
    del layers
    gc.collect()
    while any(thread.name == "megamoe-close" for thread in threading.enumerate()):
        assert time.monotonic() - started < 5, "each waited for the other"
        time.sleep(0.001)


def test_the_size_query_is_what_is_allocated_and_the_group_factor_is_counted_once():
    sizes = {"hidden": 7168, "intermediate": 2048, "num_experts": 256, "top_k": 8, "max_tokens_per_rank": 8192}
    queried = megamoe.workspace_bytes(**sizes, num_ranks=8)
    # Combine rows, BF16, one for each slot of the rank's own tokens, are the largest part and do not grow with ranks.
    combine = 8192 * 8 * 7168 * 2
    assert combine < queried < 8 * combine
    logged = []
    small = SIZES | {"max_tokens_per_rank": 4096, "hidden": 1024}
    megamoe.set_log_callback(lambda level, message: logged.append(message))
    try:
        megamoe.MoELayer(**small).close()
    finally:
        megamoe.set_log_callback(None)
    allocated = next(int(word) for line in logged for word in line.split() if word.isdigit() and int(word) > 1 << 20)
    assert allocated == megamoe.workspace_bytes(**small, num_ranks=1)
