"""`poet.wrap`: a plain loop with a wrapped module gives the bits of the loop without, inside the budget."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.nets import small_net
from torch import Tensor, nn
from zoo import NETS

import poet
from poet.errors import Infeasible, InputError, ModelError, ReplayError
from poet.integrations.wrapping import Wrapped
from poet.runtime import native
from poet.runtime.steps.passes import PassMemory
from poet.runtime.system.memory import PeakMeter, return_freed_memory


def deep_net() -> nn.Module:
    """Small nets one after the other, whose middle takes more than any op."""
    torch.manual_seed(0)
    parts = [
        part for _ in range(2) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.4))
    ]
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 64), *parts, nn.Linear(64, 5)).train()


X, Y = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 5


def _budget_bytes(net: nn.Module, example: object, share: float, **options: Any) -> int:
    """Between the least RAM of a net and what keeping everything takes."""
    made = poet.wrap(net, example, ram=None, time_limit_seconds=0.2, **options).plan.prediction
    assert made.lower_bound_ram_bytes is not None
    least = made.lower_bound_ram_bytes
    return int(least + share * (made.peak_ram_bytes - least))


def _loop(module: nn.Module, batches: Sequence[tuple[tuple[Tensor, ...], Tensor]]) -> list[Tensor]:
    """What a plain loop with an optimizer, clipping and a scheduler computes."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    log: list[Tensor] = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        output = module(*inputs)
        if targets.is_floating_point():
            loss = F.binary_cross_entropy_with_logits(output, targets)
        else:
            loss = F.cross_entropy(output, targets)
        back(loss)
        log += [loss.detach(), output.detach().clone()]
        log += [item.grad.clone() for item in module.parameters() if item.grad is not None]
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    return [*log, *(item.clone() for item in module.state_dict().values())]


def back(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def part(module: nn.Module, name: str) -> Any:
    return module.get_submodule(name)


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["resnet18", "bert", "vit", "unet", "lstm", "mobilenet_v2", "gpt"])
def test_a_wrapped_loop_is_the_plain_loop(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    size = NETS[name].small
    torch.manual_seed(0)
    plain = size.build().train()
    net = copy.deepcopy(plain)
    batches = [(size.inputs(4), size.targets(4)) for _ in range(3)]
    ram_bytes = _budget_bytes(net, batches[0][0], 0.35)
    wrapped = poet.wrap(net, batches[0][0], ram=ram_bytes, device="rpi4b", time_limit_seconds=5.0)
    trace = wrapped.plan.trace
    assert trace.recomputed_runs > 0 or trace.written_bytes > 0
    assert_same(_loop(plain, batches), _loop(wrapped, batches))


@pytest.mark.parametrize(("recompute", "paging"), [(True, False), (False, True)])
def test_recomputing_and_paging_give_the_bits_of_the_plain_loop(recompute: bool, paging: bool) -> None:
    plain, x, y = deep_net(), X.repeat(12, 1, 1, 1), Y.repeat(12)
    net = copy.deepcopy(plain)
    allowed: dict[str, Any] = {"recompute": recompute, "paging": paging, "device": "rpi4b"}
    ram_bytes = _budget_bytes(net, x, 0.6, **allowed)
    wrapped = poet.wrap(net, x, ram=ram_bytes, time_limit_seconds=0.5, **allowed)
    trace = wrapped.plan.trace
    assert (trace.recomputed_runs > 0, trace.written_bytes > 0) == (recompute, paging)
    batches = [((x + number,), y) for number in range(3)]
    assert_same(_loop(plain, batches), _loop(wrapped, batches))
    wrapped.close()


@pytest.fixture
def wrapped() -> Wrapped:
    return poet.wrap(small_net(), X, ram=None, time_limit_seconds=1.0)


def test_the_parameters_are_the_modules_and_the_state_goes_both_ways(wrapped: Wrapped) -> None:
    net = wrapped.module
    assert [id(item) for item in wrapped.parameters()] == [id(item) for item in net.parameters()]
    assert list(wrapped.state_dict()) == list(net.state_dict())
    other = small_net()
    other.load_state_dict(wrapped.state_dict(), strict=True)
    with torch.no_grad():
        part(other, "0").weight.add_(1.0)
    wrapped.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(part(net, "0").weight, part(other, "0").weight)
    assert [name for name, _ in wrapped.named_modules()] == [name for name, _ in net.named_modules()]
    assert wrapped.get_submodule("6") is part(net, "6")
    assert wrapped.extra_repr() == net.extra_repr()


def test_evaluation_and_no_grad_run_the_modules_own_forward(wrapped: Wrapped) -> None:
    plain = copy.deepcopy(wrapped.module)
    wrapped.eval()
    plain.eval()
    assert not part(wrapped, "1").training
    assert torch.equal(wrapped(X[:2]), plain(X[:2]))  # of any size
    wrapped.train()
    plain.train()
    for module in (plain, wrapped):
        torch.manual_seed(3)
        with torch.no_grad():
            module(X)
    assert_same(list(plain.state_dict().values()), list(wrapped.state_dict().values()))
    part(wrapped, "1").eval()
    with pytest.raises(InputError, match="another mode than when it was wrapped"):
        wrapped(X)


def test_hooks_see_gradients_which_are_not_copied(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    replay = wrapped._replay
    made = replay.backward

    def backward(gradients: list[Tensor]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = made(gradients)
        places.extend(item.data_ptr() for item in found)
        return found

    monkeypatch.setattr(replay, "backward", backward)
    seen: list[str] = []
    weight = part(wrapped, "0").weight
    weight.register_hook(lambda gradient: seen.append("gradient"))
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
    wrapped.register_forward_hook(lambda module, args, output: seen.append("forward"))
    back(F.cross_entropy(wrapped(X), Y))
    assert sorted(seen) == ["accumulated", "forward", "gradient"]
    own = [item.grad.data_ptr() for item in wrapped.parameters() if item.grad is not None]
    assert own[2:] == places[2:]  # none was copied; torch clones what a hook was shown
    before = weight.grad.clone()
    torch.manual_seed(5)
    back(F.cross_entropy(wrapped(X), Y))
    assert not torch.equal(weight.grad, before)  # added to


class Several(nn.Module):
    """Keyword arguments, a mapping returned, an output of whole numbers, a gradient of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor, *, scale: Tensor, doubled: bool = False) -> dict[str, object]:
        hidden = torch.tanh(self.body(x * scale)) * (2 if doubled else 1)
        scores = self.head(hidden)
        return {"scores": scores, "hidden": (hidden, scores.argmax(-1)), "what": "several"}


def _several(module: Callable[..., Any], x: Tensor, scale: Tensor) -> Tensor:
    found = module(x=x, scale=scale, doubled=True)
    assert found["what"] == "several"
    scores, (hidden, best) = found["scores"], found["hidden"]
    assert not best.requires_grad
    loss: Tensor = F.cross_entropy(scores, best) + hidden.square().mean()
    return loss


def test_keywords_several_outputs_and_gradients_of_inputs() -> None:
    torch.manual_seed(0)
    plain, x, scale = Several(), torch.randn(4, 8), torch.randn(4, 8)
    example = {"x": x, "scale": scale.clone().requires_grad_(), "doubled": True}
    wrapped = poet.wrap(copy.deepcopy(plain), example, ram="1MiB", time_limit_seconds=1.0)
    found: list[list[Any]] = []
    for module in (plain, wrapped):
        asked = scale.clone().requires_grad_()
        loss = _several(module, x, asked)
        back(loss)
        gradients = [item.grad for item in module.parameters()]
        assert gradients[4:] == [None, None]
        found.append([loss.detach(), asked.grad, *gradients[:4]])
    assert_same(*found)
    with pytest.raises(InputError, match=r"called with .*False.*wrap the module again"):
        wrapped(x=x, scale=scale, doubled=False)
    with pytest.raises(InputError, match="x requires a gradient"):
        _several(wrapped, x.clone().requires_grad_(), scale)


def test_only_the_outputs_that_make_the_loss_have_gradients() -> None:
    torch.manual_seed(0)
    plain = Several()
    example = {"x": torch.randn(4, 8), "scale": torch.randn(4, 8)}
    wrapped = poet.wrap(copy.deepcopy(plain), example, ram="1MiB", backward_from=[0], time_limit_seconds=1.0)
    found = wrapped(**example)
    assert not found["hidden"][0].requires_grad
    back(found["scores"].sum())
    back(plain(**example)["scores"].sum())
    assert torch.equal(part(plain, "body").weight.grad, part(wrapped, "body").weight.grad)
    with pytest.raises(InputError, match=r"output 2 has no gradient; those that have one are \[0, 1\]"):
        poet.wrap(plain, example, ram="1MiB", backward_from=[2])


def test_another_batch_is_refused_with_the_way_out(wrapped: Wrapped) -> None:
    with pytest.raises(InputError, match=r"the module was wrapped for .*drop_last=True.*share its tensors"):
        wrapped(X[:3])
    with pytest.raises(InputError, match="wrapped for"):
        wrapped(X.double())
    smaller = poet.wrap(wrapped.module, X[:3], ram=None, time_limit_seconds=1.0)
    back(F.cross_entropy(smaller(X[:3]), Y[:3]))
    back(F.cross_entropy(wrapped(X), Y))


def test_one_pass_at_a_time_and_each_once(wrapped: Wrapped) -> None:
    first = wrapped(X)
    with pytest.raises(ReplayError, match="still waits for its backward pass"):
        wrapped(X)
    del first
    loss = F.cross_entropy(wrapped(X), Y)  # the dropped one is forgotten
    torch.autograd.backward(loss, retain_graph=True)
    with pytest.raises(ReplayError, match="gone back through already"):
        back(loss)


def test_what_backward_reads_must_not_be_written(wrapped: Wrapped) -> None:
    loss = F.cross_entropy(wrapped(X), Y)
    with torch.no_grad():
        part(wrapped, "6").weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        back(loss)


def test_changes_of_the_module_are_noticed(wrapped: Wrapped) -> None:
    part(wrapped, "6").bias.requires_grad_(False)
    with pytest.raises(InputError, match=r"requires_grad of 6.bias was changed"):
        wrapped(X)
    part(wrapped, "6").bias.requires_grad_(True)
    wrapped.module.double()
    with pytest.raises(InputError, match=r"is float64\[.*wrapped for"):
        wrapped(X)
    wrapped.module.float()  # new memory, same types
    back(F.cross_entropy(wrapped(X), Y))
    weight = part(wrapped, "6").weight
    weight.data = weight.data.as_strided((5, 64), (1, 5))  # the same memory
    with pytest.raises(InputError, match=r"6.weight has other strides"):
        wrapped(X)
    weight.data = weight.data.as_strided((5, 64), (64, 1))
    back(F.cross_entropy(wrapped(X), Y))
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast"):
        wrapped(X)


class Scaled(nn.Module):
    """With all kinds of what a plan takes from a module besides parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.factor, self.used, self.mask = 0.5, [0, 1], torch.ones(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(self.conv(x)) * self.factor * self.mask
        return made[:, self.used].flatten(1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("norm.momentum", lambda module: setattr(module.norm, "momentum", 0.5)),
        ("factor", lambda module: setattr(module, "factor", 2.0)),
        ("used", lambda module: module.used.append(2)),
        ("mask", lambda module: setattr(module, "mask", torch.zeros(6, 6))),
        ("norm", lambda module: setattr(module.norm, "forward", torch.tanh)),
        ("conv", lambda module: setattr(module, "conv", nn.ReLU())),
        ("norm", lambda module: setattr(module, "norm", nn.BatchNorm2d(4))),
    ],
)
def test_changed_settings_are_noticed(name: str, change: Callable[[Scaled], None]) -> None:
    module = Scaled()
    wrapped = poet.wrap(module, X, ram=None, time_limit_seconds=1.0)
    module.mask.mul_(0.5)
    plain = copy.deepcopy(module)
    assert torch.equal(wrapped(X), plain(X))
    change(module)
    with pytest.raises(InputError, match=f"^{name} was changed since the module was wrapped"):
        wrapped(X)


def test_a_batch_in_another_memory_format_is_refused(wrapped: Wrapped) -> None:
    images = X.to(memory_format=torch.channels_last)
    with pytest.raises(InputError, match=r"strides .*give input.contiguous\(\), or wrap"):
        wrapped(images)
    other = poet.wrap(wrapped.module, images, ram=None, time_limit_seconds=1.0)
    back(F.cross_entropy(other(images), Y))


def test_what_cannot_be_wrapped_is_said(wrapped: Wrapped) -> None:
    with pytest.raises(Infeasible, match="needs at least"):
        poet.wrap(small_net(), X, ram=4096)
    with pytest.raises(ModelError, match="nothing to train"):
        poet.wrap(small_net().requires_grad_(False), X, ram=None)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match="`module`"):
            copied(wrapped)


@pytest.mark.slow
def test_the_peak_is_that_of_the_plan() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    x, y = torch.randn(4, 16, 64, 64), torch.arange(4)
    ram_bytes = 5_500_000
    wrapped = poet.wrap(net, x, ram=ram_bytes, paging=False, time_limit_seconds=2.0)
    assert wrapped.plan.trace.recomputed_runs > 0
    held_bytes = x.nbytes + sum(item.nbytes for item in net.parameters())

    def peak_bytes(module: nn.Module) -> int:
        def one_pass() -> None:
            net.zero_grad()
            back(F.cross_entropy(module(x), y))

        one_pass()
        one_pass()
        return_freed_memory()  # what an earlier pass left resident would hide this one's
        with PeakMeter(held_bytes) as meter:
            one_pass()
        if meter.peak.bytes is None:
            pytest.skip("the kernel keeps no high-water mark here")
        return meter.peak.bytes

    slack_bytes = 300_000  # small blocks that the heap keeps, and the loss
    assert peak_bytes(wrapped) < ram_bytes + slack_bytes
    plain_bytes = wrapped.plan.prediction.plain_peak_ram_bytes
    assert plain_bytes is not None
    assert plain_bytes > 1.5 * ram_bytes


# --- memory of passes --------------------------------------------------------------------------------------


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


@pytest.fixture
def placed() -> Iterator[tuple[Wrapped, Tensor, PassMemory]]:
    """A wrapped net whose passes lie in an arena, its batch, and their memory."""
    if not native.available():
        pytest.skip(native.why_unavailable())
    torch.set_num_threads(1)
    x = torch.randn(4, 8, 32, 32)
    wrapped = poet.wrap(convolutions(), x, ram=None, paging=False, time_limit_seconds=0.2)
    memory = wrapped._replay.memory
    assert not memory.obstacle
    yield wrapped, x, memory
    wrapped.close()


def assert_same_gradients(one: nn.Module, other: nn.Module) -> None:
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert first.grad is not None
        assert second.grad is not None
        assert torch.equal(first.grad, second.grad)


def _pass(module: nn.Module, x: Tensor) -> Tensor:
    loss = F.cross_entropy(module(x), torch.arange(4))
    back(loss)
    return loss


def test_passes_lie_in_one_arena_and_give_the_same_bits(placed: tuple[Wrapped, Tensor, PassMemory]) -> None:
    wrapped, x, memory = placed
    net = convolutions()
    allocator = native.load()
    assert allocator is not None
    for number in range(4):
        net.zero_grad()
        wrapped.zero_grad()
        with allocator.tracking() as tracked:
            assert torch.equal(_pass(wrapped, x), _pass(net, x))
        assert_same_gradients(net, wrapped)
        assert number == 0 or tracked.counts().placed > 20
        assert tracked.counts().conflicts == 0
    assert not memory.obstacle
    assert memory.arena_bytes


def test_the_arena_is_given_back_where_other_work_follows(placed: tuple[Wrapped, Tensor, PassMemory]) -> None:
    wrapped, x, memory = placed
    _pass(wrapped, x)
    net = convolutions()
    _pass(net, x)
    with torch.no_grad():
        wrapped(x)
    assert memory.arena_bytes == 0
    assert_same_gradients(net, wrapped)
    wrapped.zero_grad()
    _pass(wrapped, x)
    before = memory.arena_bytes
    other = poet.wrap(small_net(), X, ram=None, time_limit_seconds=0.2)
    back(other(X).square().sum())
    assert memory.arena_bytes < before


def test_kept_gradients_send_passes_to_the_heap_with_the_same_bits(
    placed: tuple[Wrapped, Tensor, PassMemory],
) -> None:
    wrapped, x, memory = placed
    net = convolutions()
    for _ in range(3):  # gradients are summed
        _pass(wrapped, x)
        _pass(net, x)
    assert "lives into the next one" in memory.obstacle
    assert not memory.arena_bytes
    assert_same_gradients(net, wrapped)


def test_two_passes_at_a_time_and_one_that_is_dropped(placed: tuple[Wrapped, Tensor, PassMemory]) -> None:
    wrapped, x, memory = placed
    second = poet.wrap(convolutions(), x, ram=None, paging=False, time_limit_seconds=0.2)
    net = convolutions()
    losses = [F.cross_entropy(module(x), torch.arange(4)) for module in (wrapped, second)]
    for loss in losses:
        back(loss)
    _pass(net, x)
    for module in (wrapped, second):
        assert_same_gradients(net, module)
        module.zero_grad()
    wrapped(x)  # nobody goes back
    assert torch.equal(_pass(wrapped, x), losses[0])
    assert not memory.obstacle


def test_outputs_without_a_gradient_take_no_memory_in_backward() -> None:
    allocator = native.load()
    if allocator is None:
        pytest.skip(native.why_unavailable())

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            wide = (self.scale * x).repeat(4096, 1)
            return wide.square().mean(), wide

    x = torch.randn(4)
    wrapped = poet.wrap(Two(), x, ram=None, backward_from=[0], time_limit_seconds=0.2)
    for _ in range(2):
        loss, wide = wrapped(x)
        with allocator.tracking() as tracked:
            back(loss)
        del loss
    kept_bytes = wrapped.plan.step_peak_ram_bytes - wide.nbytes
    assert tracked.peak_bytes < kept_bytes
