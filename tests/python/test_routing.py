"""megamoe.routing against the published rules written down in numpy."""

import numpy as np
import pytest

import megamoe
from megamoe import routing

NUM_EXPERTS = 12


def logits_and_bias(seed=0, num_tokens=50):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((num_tokens, NUM_EXPERTS)).astype(np.float32)
    return logits, rng.standard_normal(NUM_EXPERTS).astype(np.float32)


def best(scores, top_k):
    return np.argsort(-scores, axis=1, kind="stable")[:, :top_k]


def expect(got, ids, scores, scaling=1.0, renormalize=False):
    np.testing.assert_array_equal(got.topk_ids, ids)
    weights = np.take_along_axis(scores, ids, 1)
    if renormalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got.topk_weights, weights * scaling, rtol=1e-5)


@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax(renormalize):
    logits, _ = logits_and_bias()
    scores = np.exp(logits.astype(np.float64))
    scores /= scores.sum(axis=1, keepdims=True)
    got = routing.softmax_topk(logits, 3, renormalize=renormalize)
    expect(got, best(scores, 3), scores, renormalize=renormalize)
    assert got.shared_weights is None


@pytest.mark.parametrize("with_bias", [False, True])
def test_sigmoid(with_bias):
    logits, bias = logits_and_bias(1)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    got = routing.sigmoid_topk(logits, 4, renormalize=True, correction_bias=bias if with_bias else None)
    expect(got, best(scores + bias if with_bias else scores, 4), scores, renormalize=True)


def test_grouped():
    logits, bias = logits_and_bias(2)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    choice = (scores + bias).reshape(-1, 4, 3)
    groups = best(np.sort(choice, axis=2)[:, :, -2:].sum(axis=2), 2)
    inside = np.zeros(choice.shape[:2], bool)
    np.put_along_axis(inside, groups, True, 1)
    ids = best(np.where(inside[:, :, None], choice, -np.inf).reshape(-1, NUM_EXPERTS), 4)
    got = routing.grouped_topk(logits, bias, 4, num_groups=4, topk_groups=2, renormalize=True, scaling=2.5)
    expect(got, ids, scores, scaling=2.5, renormalize=True)


def test_sqrtsoftplus():
    logits, bias = logits_and_bias(3)
    scores = np.sqrt(np.log1p(np.exp(logits.astype(np.float64))))
    got = routing.sqrtsoftplus_topk(logits, bias, 3, scaling=1.5)
    expect(got, best(scores + bias, 3), scores, scaling=1.5, renormalize=True)


def test_ties_go_to_the_lowest_index_and_nan_comes_last():
    logits = np.zeros((2, NUM_EXPERTS), np.float32)
    logits[1, 0] = np.nan
    got = routing.sigmoid_topk(logits, 3, renormalize=False)
    assert got.topk_ids.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_a_checkpoints_router_is_the_same_rule():
    from support import FIXTURES, read_safetensors

    folder = FIXTURES / "deepseek_v3"
    checkpoint = megamoe.load_checkpoint(folder, 1)
    stored = read_safetensors(folder / "model.safetensors")
    tokens = read_safetensors(folder / "moe_layer_io.safetensors")["hidden_states"]
    gate = stored["model.layers.1.mlp.gate.weight"].astype(np.float32)
    bias = stored["model.layers.1.mlp.gate.e_score_correction_bias"].astype(np.float32)
    first = checkpoint.router.choose_experts((tokens.astype(np.float64) @ gate.T.astype(np.float64)).astype("f4"), bias)
    second = checkpoint.route(tokens)
    assert (first.topk_ids == second.topk_ids).mean() > 0.99


@pytest.mark.parametrize(
    ("settings", "logits", "bias", "sentence"),
    [
        ({"top_k": 13}, (2, 12), None, "top_k must be 1 to 12, got 13"),
        ({"top_k": 0}, (2, 12), None, "top_k must be at least 1, got 0"),
        ({"scoring": "tanh"}, (2, 12), None, "scoring must be one of softmax, sigmoid, sqrtsoftplus"),
        ({"num_groups": 5}, (2, 12), None, "num_groups must be a divisor of the 12 experts, got 5"),
        ({"scaling": -1.0}, (2, 12), None, "scaling must be a positive number"),
        ({"scaling": 0.0}, (2, 12), None, "scaling must not be 0"),
        ({}, (12,), None, r"logits must have shape \[tokens, experts\], got \[12\]"),
        ({"has_correction_bias": True}, (2, 12), None, "correction_bias must be given, got none"),
        ({"has_correction_bias": True}, (2, 12), (11,), r"correction_bias must have shape \[12\], got \[11\]"),
        ({}, (2, 12), (12,), "correction_bias must be absent"),
    ],
)
def test_settings_and_arrays_that_cannot_be(settings, logits, bias, sentence):
    router = routing.Router(**{"top_k": 2, "scoring": "softmax"} | settings)
    with pytest.raises(ValueError, match=sentence):
        router.choose_experts(np.zeros(logits, np.float32), None if bias is None else np.zeros(bias, np.float32))


def test_logits_of_another_type():
    with pytest.raises(ValueError, match="logits must be float32, got int64"):
        routing.softmax_topk(np.zeros((2, 12), np.int64), 2, renormalize=False)
