"""Lion is the paper's algorithm, whatever tensors it is given."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from mupscale.errors import OptionError
from mupscale.optim import Lion

STEPS = 6


def paper(
    weights: list[float], gradients: list[list[float]], lr, beta1, beta2, decay
) -> list[float]:
    """Algorithm 2 of Chen et al. 2023, one number at a time."""
    thetas, momenta = list(weights), [0.0] * len(weights)
    for g in gradients:
        for i in range(len(thetas)):
            c = beta1 * momenta[i] + (1 - beta1) * g[i]
            thetas[i] = thetas[i] - lr * ((c > 0) - (c < 0)) - lr * decay * thetas[i]
            momenta[i] = beta2 * momenta[i] + (1 - beta2) * g[i]
    return thetas


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=dtype))


def step_(optimizer: Lion, gradients: list[torch.Tensor | None]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(params, gradients, strict=True):
        p.grad = gradient
    optimizer.step()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98), (0.0, 0.5)])
def test_it_is_the_papers_algorithm(betas, decay):
    W = parameter(50, dtype=torch.float64)
    gradients = torch.randn(STEPS, 50, dtype=torch.float64)
    expected = paper(W.tolist(), gradients.tolist(), 0.02, *betas, decay)
    optimizer = Lion([W], lr=0.02, betas=betas, weight_decay=decay)
    for gradient in gradients:
        step_(optimizer, [gradient])
    torch.testing.assert_close(
        W.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14
    )


def test_every_entry_moves_by_lr_and_one_without_any_gradient_stays():
    W = nn.Parameter(torch.zeros(3))
    step_(Lion([W], lr=0.25), [torch.tensor([1e-30, -1e30, 0.0])])
    assert W.tolist() == [-0.25, 0.25, 0.0]


def test_tensors_of_several_types_in_a_group_step_as_each_would_alone():
    dtypes = (torch.float32, torch.bfloat16, torch.float32, torch.float64)
    together = [parameter(3, 4, dtype=dtype) for dtype in dtypes]
    alone = copy.deepcopy(together)
    optimizers = [Lion([p], lr=0.1, weight_decay=0.1) for p in alone]
    optimizer = Lion(together, lr=0.1, weight_decay=0.1)
    for _ in range(STEPS):
        gradients = [torch.randn_like(p) for p in together]
        step_(optimizer, list(gradients))
        for one, gradient in zip(optimizers, gradients, strict=True):
            step_(one, [gradient])
    assert all(torch.equal(p, q) for p, q in zip(together, alone, strict=True))
    assert [optimizer.state[p]["exp_avg"].dtype for p in together] == list(dtypes)


def test_groups_have_their_own_rates_and_keep_what_they_do_not_use():
    extra = {"name": "hidden", "initial_lr": 0.5, "param_names": ["w"], "eps": 1e-9}
    W = nn.Parameter(torch.zeros(2))
    optimizer = Lion([{"params": [W], "lr": 0.5, **extra}])
    step_(optimizer, [torch.ones(2)])
    assert W.tolist() == [-0.5, -0.5]
    loaded = Lion([nn.Parameter(torch.zeros(2))])
    loaded.load_state_dict(optimizer.state_dict())
    for group in (optimizer.param_groups[0], loaded.param_groups[0]):
        assert {key: group[key] for key in extra} == extra


def test_a_parameter_without_gradient_is_left_alone():
    V, W = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Lion([V, W], lr=0.5, weight_decay=0.1)
    step_(optimizer, [None, torch.ones(2)])
    assert V.tolist() == [1.0, 1.0]
    assert V not in optimizer.state


def saved(optimizer: Lion) -> Lion:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    clone = Lion([nn.Parameter(p.detach().clone()) for p in optimizer.param_groups[0]["params"]])
    clone.load_state_dict(torch.load(file, weights_only=True))
    return clone


@pytest.mark.parametrize("copied", [saved, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_continues_as_the_original_does(copied):
    W = parameter(4, 5)
    optimizer = Lion([W], lr=0.03, betas=(0.8, 0.9), weight_decay=0.2)
    step_(optimizer, [torch.randn(4, 5)])
    clone = copied(optimizer)
    for _ in range(STEPS):
        gradient = torch.randn(4, 5) / 3
        step_(optimizer, [gradient])
        step_(clone, [gradient])
    assert torch.equal(clone.param_groups[0]["params"][0], W)


def test_a_rate_in_a_tensor_can_be_scheduled():
    W = nn.Parameter(torch.zeros(1))
    optimizer = Lion([W], lr=torch.tensor(1.0))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for expected in (-1.0, -1.5, -1.75):
        step_(optimizer, [torch.ones(1)])
        schedule.step()
        assert W.item() == expected


def test_the_closures_loss_is_given_back():
    W = nn.Parameter(torch.ones(2))
    optimizer = Lion([W], lr=0.5)

    def closure() -> torch.Tensor:
        loss = W.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert W.tolist() == [0.5, 0.5]


def test_a_compiled_model_trains_as_the_bare_one():
    bare = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    inner = copy.deepcopy(bare)
    x = torch.randn(10, 6)
    before = bare(x).square().mean()
    for model, params in ((bare, bare), (torch.compile(inner, backend="eager"), inner)):
        optimizer = Lion(params.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert all(
        torch.equal(p, q) for p, q in zip(bare.parameters(), inner.parameters(), strict=True)
    )
    assert bare(x).square().mean() < before


def test_shared_and_plain_tensors_step_alike_in_one_group(mesh):
    whole = [parameter(5, 4), parameter(3)]
    shared = [
        nn.Parameter(distribute_tensor(whole[0].detach().clone(), mesh, [Shard(0)])),
        copy.deepcopy(whole[1]),
    ]
    optimizers = [Lion(params, lr=0.1, weight_decay=0.1) for params in (whole, shared)]
    for _ in range(STEPS):
        gradients = [torch.randn(5, 4), torch.randn(3)]
        step_(optimizers[0], list(gradients))
        # A gradient may be cut in another way than its parameter.
        step_(optimizers[1], [distribute_tensor(gradients[0], mesh, [Replicate()]), gradients[1]])
    assert torch.equal(shared[0].full_tensor(), whole[0])
    assert torch.equal(shared[1], whole[1])
    assert optimizers[1].state[shared[0]]["exp_avg"].placements == (Shard(0),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": math.nan}, r"lr=nan is not a finite number ≥ 0\. Give one such as 0\.0001"),
        ({"lr": -1.0}, r"lr=-1\.0"),
        ({"lr": math.inf}, r"lr=inf"),
        ({"lr": "0.1"}, r"lr='0\.1'"),
        ({"lr": torch.ones(2)}, r"lr=tensor\(\[1\., 1\.\]\)"),
        ({"weight_decay": -0.1}, r"weight_decay=-0\.1"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\]=1\.0 is not a number from 0 to below 1.*0\.99"),
        ({"betas": (-0.1, 0.9)}, r"betas\[0\]=-0\.1"),
        ({"betas": (math.nan, 0.9)}, r"betas=\(nan, 0\.9\)"),
        ({"betas": 0.9}, r"betas=0\.9 is not a sequence of 2"),
    ],
)
def test_wrong_settings_are_refused_with_what_was_got_and_what_is_wanted(options, message):
    with pytest.raises(OptionError, match=message):
        Lion([parameter(2)], **options)
    with pytest.raises(OptionError, match=message):
        Lion([{"params": [parameter(2)], **options}])


def test_a_refused_group_leaves_the_optimizer_as_it_was():
    optimizer = Lion([parameter(2)])
    with pytest.raises(OptionError, match="lr=nan"):
        optimizer.add_param_group({"params": [parameter(2)], "lr": math.nan})
    assert len(optimizer.param_groups) == 1
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = math.nan
    with pytest.raises(OptionError, match="lr=nan"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 1e-4


def test_sparse_gradients_and_complex_numbers_are_refused_by_name():
    table = nn.Embedding(3, 2, sparse=True)
    optimizer = Lion(table.named_parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(OptionError, match=r"'weight'.*torch\.sparse_coo.*sparse=False"):
        optimizer.step()
    with pytest.raises(OptionError, match=r"parameter 0 has dtype torch\.complex64.*view_as_real"):
        Lion([parameter(2, dtype=torch.complex64)])
