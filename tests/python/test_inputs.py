"""What may be passed: DLPack producers old and new, declared byte types, and refusals that name the tensor."""

import ctypes
import weakref

import numpy as np
import pytest

import megamoe
import oracle
import support


class Producer:
    """Only DLPack: nothing of numpy shows. It counts who still holds its memory."""

    def __init__(self, array, versions=True):
        self._array = array
        self._versions = versions
        self.requested = []

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        if "max_version" in arguments and not self._versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.requested.append(arguments)
        return self._array.__dlpack__(**arguments)


class Gpu(Producer):
    """Says that it lies on a GPU, which no CPU layer may touch."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(max_version=(1, 1))


def as_bytes(array):
    return array.view({1: np.uint8, 2: np.uint16}[array.itemsize])


def dlpack(array, versions=True):
    """A producer of an array whose type numpy's own DLPack lacks goes as bytes with the type said beside."""
    if array.dtype.name in ("float32", "int32", "int64"):
        return Producer(array, versions)
    return megamoe.typed(Producer(as_bytes(array), versions), array.dtype.name)


@pytest.mark.parametrize("versions", [True, False], ids=["versioned", "before 1.0"])
def test_everything_can_come_by_dlpack(versions):
    data = support.Layer()
    share = {name: dlpack(array, versions) for name, array in data.share(0, 1).items()}
    output = np.zeros((12, 256), np.uint16)
    with data.make(**share) as layer:
        layer(
            dlpack(data.tokens, versions), dlpack(data.ids, versions), dlpack(data.weights, versions),
            output=megamoe.typed(Producer(output, versions), "bfloat16"),
        )  # fmt: skip
    support.assert_close(output.view(oracle.BF16), data.expected())


def test_the_memory_of_a_capsule_lives_as_long_as_the_layer():
    data = support.Layer()
    scale = data.share(0, 1)["w2_scale"]
    owner = type("Owner", (np.ndarray,), {})
    array = scale.view(owner)
    gone = weakref.ref(array)
    layer = data.make(w2_scale=Producer(array))
    del array
    assert gone() is not None
    support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())
    layer.close()
    assert gone() is None


def test_bytes_with_their_type_said():
    data = support.Layer()
    share = {
        name: megamoe.typed(as_bytes(array), array.dtype.name) if name in ("w13", "w2") else array
        for name, array in data.share(0, 1).items()
    }
    output = megamoe.typed(np.zeros((12, 256), np.uint16), "bfloat16")
    with data.make(**share) as layer:
        returned = layer(megamoe.typed(as_bytes(data.tokens), "bfloat16"), data.ids, data.weights, output=output)
    assert returned is output.array
    support.assert_close(returned.view(oracle.BF16), data.expected())


def test_bytes_without_a_word_are_refused():
    data = support.Layer()
    with pytest.raises(ValueError, match="w13 must be float8_e4m3fn, got uint8"):
        data.make(w13=as_bytes(data.w13))
    with pytest.raises(ValueError, match=r"int8; .*megamoe\.typed"):
        data.make(w13=data.w13.view(np.int8))


def test_a_declaration_must_fit_the_bytes():
    with pytest.raises(ValueError, match="dtype must be float8_e4m3fn, float8_e8m0fnu or bfloat16, got 'float16'"):
        megamoe.typed(np.zeros(4, np.uint16), "float16")
    data = support.Layer()
    with data.make() as layer, pytest.raises(ValueError, match=r"declared as bfloat16.*integers of 2 byte.*got uint8"):
        layer(megamoe.typed(np.zeros((12, 256), np.uint8), "bfloat16"), data.ids, data.weights)


REFUSED = {
    "float64 tokens": (lambda d: {"hidden_states": d.tokens.astype(np.float64)}, "hidden_states.*got float64"),
    "float16 tokens": (lambda d: {"hidden_states": d.tokens.astype(np.float16)}, "hidden_states.*got float16"),
    "int16 ids": (lambda d: {"topk_ids": d.ids.astype(np.int16)}, "topk_ids.*got int16"),
    "bf16 weights": (
        lambda d: {"topk_weights": d.weights.astype(oracle.BF16)},
        "topk_weights must be float32, got bfloat16",
    ),
    "big-endian weights": (lambda d: {"topk_weights": d.weights.astype(">f4")}, "topk_weights must be little-endian"),
    "one id row too few": (lambda d: {"topk_ids": d.ids[:-1]}, r"topk_ids must have shape \[12, 2\], got \[11, 2\]"),
    "flat ids": (lambda d: {"topk_ids": d.ids.reshape(-1)}, r"topk_ids must have shape \[12, 2\], got \[24\]"),
    "six dimensions": (lambda d: {"topk_ids": d.ids.reshape(12, 2, 1, 1, 1, 1)}, "topk_ids must have at most 5"),
    "a list": (lambda d: {"topk_ids": d.ids.tolist()}, "topk_ids must be a numpy array, .*got list"),
    "nothing": (lambda d: {"topk_ids": None}, "topk_ids must be given"),
    "read-only output": (lambda d: {"output": read_only(d)}, "output must be writable"),
    "read-only output by DLPack": (
        lambda d: {"output": megamoe.typed(Producer(as_bytes(read_only(d))), "bfloat16")},
        "output must be writable",
    ),
    "elements cut apart": (lambda d: {"topk_weights": misaligned(d)}, "strides of topk_weights.*got 9 bytes"),
    "GPU memory": (lambda d: {"topk_weights": Gpu(d.weights)}, "topk_weights must lie in host memory"),
    "codes without scales": (
        lambda d: {"hidden_states": d.tokens.astype(oracle.E4M3)},
        "hidden_states_scale must be given",
    ),
    "an id beyond the experts": (
        lambda d: {"topk_ids": with_id(d, 8)},
        "got 8 at rank 0, token 3, slot 1",
    ),
    "an id below -1": (lambda d: {"topk_ids": with_id(d, -2)}, "got -2 at rank 0, token 3, slot 1"),
}  # fmt: skip


def read_only(data):
    array = np.zeros(data.tokens.shape, oracle.BF16)
    array.flags.writeable = False
    return array


def misaligned(data):
    raw = np.zeros((12, 9), np.uint8)
    return np.ndarray((12, 2), np.float32, raw, strides=(9, 4))


def with_id(data, value):
    ids = data.ids.copy()
    ids[3, 1] = value
    return ids


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_the_next_call_works(name):
    data = support.Layer()
    change, sentence = REFUSED[name]
    arguments = {"hidden_states": data.tokens, "topk_ids": data.ids, "topk_weights": data.weights} | change(data)
    with data.make() as layer:
        with pytest.raises(ValueError, match=sentence):
            layer(**arguments)
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_a_rank_with_wrong_arguments_fails_the_call_everywhere():
    data = support.Layer()

    def rank(group):
        layer = data.make(group)
        ids = "not an array" if group.rank == 1 else data.ids
        error = None
        try:
            layer(data.tokens, ids, data.weights)
        except Exception as raised:
            error = raised
        again = layer(data.tokens, data.ids, data.weights)
        layer.close()
        return error, again

    (first, again), (second, _) = support.on_ranks(2, rank)
    assert isinstance(second, ValueError) and "topk_ids must be a numpy array" in str(second)
    assert isinstance(first, megamoe.MegamoeError) and "rank 1" in str(first)
    support.assert_close(again, data.expected())


def test_foreign_fp8_types_are_refused_by_their_name():
    """AMD's e4m3fnuz has another bias: read as e4m3fn it would be off by a factor of two."""
    import ml_dtypes

    data = support.Layer()
    with pytest.raises(ValueError, match="w13 must have one of the dtypes .*got float8_e4m3fnuz"):
        data.make(w13=data.w13.view(ml_dtypes.float8_e4m3fnuz))


def test_output_is_required_where_nothing_can_be_allocated():
    data = support.Layer()
    with data.make() as layer:
        with pytest.raises(ValueError, match="output must be given for hidden_states of type Producer"):
            layer(dlpack(data.tokens), data.ids, data.weights)
        support.assert_close(layer(data.tokens, data.ids, data.weights), data.expected())


def test_capsules_are_given_back():
    """A capsule that nobody consumed frees its memory by itself when it is garbage."""
    released = []

    class Counted(np.ndarray):
        def __del__(self):
            released.append(1)

    data = support.Layer()
    with data.make() as layer:
        for _ in range(5):
            layer(data.tokens, data.ids, Producer(data.weights.copy().view(Counted)))
    assert ctypes.sizeof(ctypes.c_void_p) == 8 and len(released) == 5
