"""Results of known layouts: what torch itself returns, the first time and the second."""

import pytest
import torch

from mupscale.reading.layouts import Layouts

aten = torch.ops.aten
META = {"device": "meta"}
X = torch.empty(4, 6, **META)
COUNTS = torch.empty(4, 6, dtype=torch.long, **META)


def layout(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


CALLS = [
    (aten.mul.Tensor, (X, X), {}),
    (aten.mul.Tensor, (X, X.double()), {}),
    (aten.mul.Tensor, (X, torch.empty(4, 1, 6, **META)), {}),
    (aten.mul.Tensor, (2 * (torch.empty(6, 4, **META).t(),)), {}),
    (aten.mul.Tensor, (X.to(torch.bfloat16), X.to(torch.bfloat16)), {}),
    (aten.add.Tensor, (COUNTS, 1), {}),
    (aten.add.Tensor, (COUNTS, 1.0), {}),
    (aten.sum.dim_IntList, (X, [0]), {}),
    (aten.sum.dim_IntList, (X, [1]), {}),
    (aten.sum.dim_IntList, (X, [1], True), {}),
    (aten.sum.dim_IntList, (X, [1]), {"dtype": torch.float64}),
    (aten.cat.default, ([X, X],), {}),
    (aten.cat.default, ([X, X, X],), {}),
    (aten.cat.default, ([X, X], 1), {}),
    (aten.clone.default, (X.t(),), {}),
    (aten.clone.default, (X.t(),), {"memory_format": torch.contiguous_format}),
    (aten.add.Tensor, (torch.ones(4, 6, dtype=torch.bool, **META), True), {}),
    (aten.add.Tensor, (torch.ones(4, 6, dtype=torch.bool, **META), 1), {}),
    (aten.topk.default, (X, 2), {}),
]


def test_each_result_is_laid_out_as_torch_lays_it_out():
    """All in one memory, so that two calls that differ in one thing would be confused."""
    layouts = Layouts()
    for _ in range(2):
        for operator, args, keywords in CALLS:
            results = layouts.result(operator, args, keywords), operator(*args, **keywords)
            made, expected = (r if isinstance(r, tuple) else (r,) for r in results)
            assert [layout(t) for t in made] == [layout(t) for t in expected]


def test_a_known_result_is_made_without_the_operator():
    layouts, ran = Layouts(), []

    def double(x):
        ran.append(x)
        return x + x

    layouts.result(double, (X,), {})
    layouts.result(double, (X,), {})
    assert len(ran) == 1
    layouts.result(double, (COUNTS,), {})
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        (aten.view.default, ([24],)),
        (aten.t.default, ()),
        (aten._unsafe_view.default, ([24],)),
        (aten.add_.Tensor, (1,)),
    ],
)
def test_a_view_and_a_change_in_place_stay_what_they_are(operator, more):
    layouts = Layouts()
    for _ in range(2):
        x = torch.empty(4, 6, **META)
        result = layouts.result(operator, (x, *more), {})
        assert result.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_numbers_that_decide_a_shape_are_looked_at_each_time():
    layouts = Layouts()
    for chosen in (1, 3):
        mask = torch.arange(4) < chosen
        assert layouts.result(aten.index.Tensor, (torch.ones(4, 6), [mask]), {}).shape[0] == chosen
        assert layouts.result(aten.index.Tensor, (X, [mask]), {}).shape[0] == chosen


def test_a_default_type_decides_where_no_tensor_does():
    layouts, before = Layouts(), torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert layouts.result(aten.full.default, ([2], 1.5), META).dtype == dtype
    finally:
        torch.set_default_dtype(before)
