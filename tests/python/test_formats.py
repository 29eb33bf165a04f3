"""Formats that look alike: scale types, major orders, gate and up orders, clamps, scalings, missing tensors."""

import ml_dtypes
import numpy as np
import pytest

import megamoe
import oracle
import support

E8M0 = ml_dtypes.float8_e8m0fnu


def powers_of_two(scales):
    return np.exp2(np.ceil(np.log2(scales))).astype(np.float32)


# Scales declared as FP32 or as powers of two.


class Scales:
    """Four tokens whose activation scales are no powers of two, and weights whose scales are."""

    def __init__(self):
        self.data = support.Layer(hidden=512, intermediate=256, num_experts=2, top_k=1, num_tokens=4)
        self.data.w13_scale = powers_of_two(self.data.w13_scale)
        self.data.w2_scale = powers_of_two(self.data.w2_scale)
        self.codes, _ = oracle.quantise_rows(self.data.tokens)
        self.plain = np.full((4, 4), 0.7 / 448, np.float32)
        self.powers = powers_of_two(self.plain)

    def __call__(self, scales, scale_format, weights=None):
        with self.data.make(**weights or {}) as layer:
            return layer(
                self.codes, self.data.ids, self.data.weights, hidden_states_scale=scales, scale_format=scale_format
            )

    def expected(self, scales):
        return oracle.moe((self.codes, scales), self.data.ids, self.data.weights, self.data)


def test_matching_declarations_of_activation_scales():
    case = Scales()
    support.assert_close(case(case.plain, "float32"), case.expected(case.plain))
    want = case.expected(case.powers)
    support.assert_close(case(case.powers, "float32"), want)
    support.assert_close(case(case.powers, "ue8m0"), want)
    support.assert_close(case(case.powers.astype(E8M0), "ue8m0"), want)
    as_bytes = megamoe.typed(case.powers.astype(E8M0).view(np.uint8), "float8_e8m0fnu")
    support.assert_close(case(as_bytes, "ue8m0"), want)


@pytest.mark.parametrize(
    ("scales", "scale_format", "sentence"),
    [
        (
            lambda c: c.plain,
            "ue8m0",
            "hidden_states_scale was declared as ue8m0, so every scale must be a power of two",
        ),
        (lambda c: c.powers.astype(E8M0), "float32", "hidden_states_scale was declared as float32 scales, got float8"),
        (lambda c: c.powers.astype(E8M0).view(np.uint8), "ue8m0", "hidden_states_scale must be .*got uint8"),
        (lambda c: c.powers.astype(E8M0).view(np.uint32), "ue8m0", "hidden_states_scale .*got uint32"),
        (lambda c: c.plain, None, "the scale format of hidden_states_scale must be stated"),
        (lambda c: c.plain, "fp32", "scale_format must be one of float32, ue8m0, got 'fp32'"),
    ],
)
def test_other_declarations_of_activation_scales_are_refused(scales, scale_format, sentence):
    case = Scales()
    with pytest.raises(ValueError, match=sentence):
        case(scales(case), scale_format)
    support.assert_close(case(case.plain, "float32"), case.expected(case.plain))


def test_weight_scales_as_powers_of_two():
    case = Scales()
    want = case(case.plain, "float32")
    exponents = {name: getattr(case.data, name).astype(E8M0) for name in ("w13_scale", "w2_scale")}
    # Activation scales stay FP32 while those of the weights are exponents: each is declared for itself.
    for weights in ({"scale_format": "ue8m0"}, exponents | {"scale_format": "ue8m0"}):
        assert np.array_equal(case(case.plain, "float32", weights).view(np.uint16), want.view(np.uint16))


def test_weight_scales_against_their_declaration_are_refused():
    case = Scales()
    with pytest.raises(ValueError, match="w13_scale was declared as float32 scales, got float8_e8m0"):
        case(case.plain, "float32", {"w13_scale": case.data.w13_scale.astype(E8M0)})
    with pytest.raises(ValueError, match="w2_scale was declared as ue8m0, so every scale must be a power of two"):
        case(case.plain, "float32", {"w2_scale": case.data.w2_scale * np.float32(0.7), "scale_format": "ue8m0"})
    with pytest.raises(ValueError, match="the scale format of w13_scale must be stated"):
        case(case.plain, "float32", {"scale_format": None})


# Scale matrices in one major order or the other.


@pytest.mark.parametrize("hidden", [512, 128])
def test_activation_scales_in_either_major_order(hidden):
    data = support.Layer(hidden=hidden, num_experts=2, top_k=1, num_tokens=7)
    codes, _ = oracle.quantise_rows(data.tokens)
    rows, groups = np.arange(7)[:, None], np.arange(hidden // 128)[None, :]
    scales = np.exp2((rows + 3 * groups) % 5).astype(np.float32) * np.float32(1e-3)
    padded = np.zeros((hidden // 128, 8), np.float32)  # group-major with rows padded to a multiple of 4
    padded[:, :7] = scales.T
    want = oracle.moe((codes, scales), data.ids, data.weights, data)
    with data.make() as layer:
        got = [
            layer(codes, data.ids, data.weights, hidden_states_scale=given, scale_format="float32")
            for given in (scales, np.asfortranarray(scales), padded[:, :7].T)
        ]
        support.assert_close(got[0], want)
        assert np.array_equal(got[0].view(np.uint16), got[1].view(np.uint16))
        assert np.array_equal(got[0].view(np.uint16), got[2].view(np.uint16))
        if hidden != 128:
            with pytest.raises(ValueError, match=r"hidden_states_scale must have shape \[7, 4\], got \[4, 7\]"):
                layer(
                    codes, data.ids, data.weights, hidden_states_scale=np.ascontiguousarray(scales.T),
                    scale_format="float32",
                )  # fmt: skip


def test_weight_scales_in_the_wrong_order_are_refused_by_shape():
    data = support.Layer(hidden=640, intermediate=384, num_experts=2, top_k=1, num_tokens=2)
    with pytest.raises(ValueError, match=r"w2_scale must have shape \[2, 5, 3\], got \[2, 3, 5\]"):
        data.make(w2_scale=np.ascontiguousarray(data.w2_scale.transpose(0, 2, 1)))
    with pytest.raises(ValueError, match="w2_scale must be dense and row-major"):
        data.make(w2_scale=np.ascontiguousarray(data.w2_scale.transpose(0, 2, 1)).transpose(0, 2, 1))


def test_a_square_grid_is_right_only_in_its_own_order():
    data = support.Layer(hidden=512, intermediate=256, num_experts=2, top_k=1, num_tokens=3)
    i, j = np.arange(4)[:, None], np.arange(4)[None, :]
    grid = np.exp2(i - 2.0 * j).astype(np.float32) * np.float32(1e-3)
    for order in (grid, np.ascontiguousarray(grid.T)):
        data.w13_scale = np.broadcast_to(order, (2, 4, 4)).copy()
        with data.make() as layer:
            support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


# SwiGLU: clamps.


def pre_activations(gate, up):
    """One expert on one token, K = 1, whose pre-activations are exactly these, behind an identity."""
    data = support.Layer(hidden=128, intermediate=128, num_experts=1, top_k=1, num_tokens=1)
    data.tokens[:] = 1
    data.ids[:], data.weights[:] = 0, 1
    data.w13[:], data.w2[:] = 0, 0
    data.w13[0, :128, 0] = np.float32(np.sign(gate))
    data.w13[0, 128:, 0] = np.float32(np.sign(up))
    data.w2[0][np.arange(128), np.arange(128)] = 1
    data.w13_scale[0] = np.float32([abs(gate), abs(up)]).reshape(2, 1, 1)
    data.w2_scale[:] = 1
    return data


PAIRS = [(30.0, 30.0), (-30.0, -30.0), (10.1, -10.1), (9.9, 2.0), (0.0, 30.0)]


@pytest.mark.parametrize(
    ("clamp", "wanted"),
    [
        (10.0, [99.9955, 2.81e-11, -99.9955, 19.7990, 0]),
        (None, [900, 8.42e-11, -102.0058, 19.7990, 0]),
        (np.inf, [900, 8.42e-11, -102.0058, 19.7990, 0]),
    ],
)
def test_clamps(clamp, wanted):
    for (gate, up), want in zip(PAIRS, wanted, strict=True):
        data = pre_activations(gate, up)
        with data.make(swiglu_clamp=clamp) as layer:
            output = layer(data.tokens, data.ids, data.weights).astype(np.float64)
        # Below 1e-10 the quantiser gives zeros: an activation of 3e-11 is not seen.
        want = 0 if abs(want) < 1e-10 else want
        assert np.allclose(output, want, rtol=5e-3, atol=1e-10), (gate, up)


@pytest.mark.parametrize("clamp", [0.0, -1.0, float("nan")])
def test_clamps_that_mean_nothing_are_refused(clamp):
    with pytest.raises(ValueError, match="swiglu_clamp must be greater than 0"):
        support.Layer().make(swiglu_clamp=clamp)


def test_another_swiglu_cannot_be_asked_for_silently():
    with pytest.raises(TypeError, match="swiglu_alpha"):
        support.Layer().make(swiglu_alpha=1.702)
    with pytest.raises(NotImplementedError, match="activation must be 'silu', got 'swigluoai'"):
        data = support.Layer()
        megamoe.fused_experts(
            data.tokens, data.w13, data.w2, data.weights, data.ids, w1_scale=data.w13_scale, w2_scale=data.w2_scale,
            activation="swigluoai",
        )  # fmt: skip


# Router weights: on the experts' output, once.


def test_router_weights_scale_the_output_and_only_once():
    data = support.Layer(top_k=1, num_tokens=6)
    with data.make() as layer:
        one = layer(data.tokens, data.ids, np.ones_like(data.weights)).astype(np.float64)
        two = layer(data.tokens, data.ids, np.full_like(data.weights, 2)).astype(np.float64)
        scaled = layer(data.tokens, data.ids, np.full_like(data.weights, 2.5)).astype(np.float64)
    assert np.array_equal(two, 2 * one)
    support.assert_close(scaled, 2.5 * one, 2e-2)


def test_weights_on_the_input_are_the_callers_and_differ():
    data = pre_activations(2.0, -3.0)
    data.weights[:] = 0.5
    with data.make() as layer:
        after = layer(data.tokens, data.ids, data.weights).astype(np.float64)
        before = layer((data.tokens * 0.5).astype(oracle.BF16), data.ids, np.ones_like(data.weights)).astype(np.float64)
    assert np.allclose(after, -2.64239, rtol=5e-3)
    assert np.allclose(before, -1.09659, rtol=5e-3)


# Orders of gate and up.


def reordered(data, layout):
    """The same layer with w13 in another order of rows, and its scale halves with it."""
    half = data.intermediate
    gate, up = np.arange(half), np.arange(half, 2 * half)
    order = {
        "gate_up": np.concatenate([gate, up]),
        "up_gate": np.concatenate([up, gate]),
        "interleaved_1": np.stack([gate, up], 1).ravel(),
        "interleaved_8": np.stack([gate.reshape(-1, 8), up.reshape(-1, 8)], 1).ravel(),
    }[layout]
    scale = data.w13_scale[:, ::-1] if layout == "up_gate" else data.w13_scale
    return {"w13": np.ascontiguousarray(data.w13[:, order]), "w13_scale": np.ascontiguousarray(scale)}


@pytest.mark.parametrize("layout", ["gate_up", "up_gate", "interleaved_1", "interleaved_8"])
def test_declared_orders_of_gate_and_up(layout):
    data = support.Layer(hidden=256, intermediate=256, num_experts=2, top_k=1)
    data.w13_scale[:, 0], data.w13_scale[:, 1] = 5e-4, 2.5e-4  # a reorder that forgets the scales shows
    with data.make(**reordered(data, layout), w13_layout=layout) as layer:
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_swapped_halves_would_be_seen():
    data = pre_activations(2.0, -3.0)
    with data.make() as layer:
        right = layer(data.tokens, data.ids, data.weights).astype(np.float64)
    with data.make(w13_layout="up_gate") as layer:
        swapped = layer(data.tokens, data.ids, data.weights).astype(np.float64)
    assert np.allclose(right, -5.28478, rtol=5e-3) and np.allclose(swapped, -0.28456, rtol=5e-3)


def test_the_order_of_gate_and_up_must_be_stated_and_known():
    data = support.Layer()
    with pytest.raises(ValueError, match="w13_layout must be stated"):
        data.make(w13_layout=None)
    with pytest.raises(ValueError, match="w13_layout must be one of gate_up, .*got 'w13'"):
        data.make(w13_layout="w13")


# Weights that are not all there.


@pytest.mark.parametrize("name", ["w13", "w13_scale", "w2", "w2_scale"])
def test_a_missing_tensor_is_named_and_nothing_is_used(name):
    data = support.Layer()
    with pytest.raises(ValueError, match=f"{name} must be given"):
        data.make(hidden=256, intermediate=128, num_experts=8, **{name: None})
    layer = megamoe.MoELayer(hidden=256, intermediate=128, num_experts=8, top_k=2, max_tokens_per_rank=16)
    with pytest.raises(ValueError, match=f"{name} must be given"):
        layer.load_weights(**data.share(0, 1) | {name: None}, w13_layout="gate_up", scale_format="float32")
    with layer, pytest.raises(ValueError, match="load_weights must have succeeded before, and it has not"):
        layer(data.tokens, data.ids, data.weights)


def test_a_missing_or_surplus_expert_is_refused():
    data = support.Layer()
    with pytest.raises(ValueError, match=r"w2 must have shape \[8, 256, 128\], got \[7, 256, 128\]"):
        data.make(w2=data.w2[:7])
    with pytest.raises(ValueError, match=r"w13_scale must have shape \[8, 2, 1, 2\], got \[9, 2, 1, 2\]"):
        data.make(w13_scale=np.concatenate([data.w13_scale, data.w13_scale[:1]]))


def test_scales_that_are_not_numbers_are_refused_with_their_place():
    data = support.Layer()
    data.w2_scale[5, 1, 0] = np.nan
    with pytest.raises(ValueError, match=r"every scale of w2_scale must be finite, got nan at \[5, 1, 0\]"):
        data.make()
