"""Hugging Face's Trainer with the callback gives the bits of the Trainer without, or refuses in one line."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poet
from poet.errors import Infeasible, InputError, ReplayError
from poet.integrations.planned_forward import planned_forward_of, release
from poet.runtime.native import available

OPTIONS: dict[str, Any] = {"device": "rpi4b", "time_limit_seconds": 0.5}


# --- plan_forward, with any module -------------------------------------------------------------------------


class Classifier(nn.Module):
    """Returns a mapping with a loss where it is given labels, and looks at whether a mask masks anything."""

    config: Any = None
    looks = False

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Any]:
        hidden = self.drop(torch.tanh(self.norm(self.body(x))))
        if mask is not None:
            hidden = hidden * mask
            if self.looks and not torch.compiler.is_exporting() and mask.all():
                hidden = hidden + 1
        logits = self.head(hidden)
        found = {"logits": logits}
        if labels is not None:
            found = {"loss": F.cross_entropy(logits, labels), **found}
        return found


def back(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def batch(rows: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return {"x": torch.randn(rows, 8, generator=draw), "labels": torch.arange(rows) % 3}


def planned(**options: Any) -> Classifier:
    torch.manual_seed(0)
    return poet.plan_forward(Classifier(), ram=None, **OPTIONS, **options)


@pytest.mark.slow
def test_each_kind_of_batch_is_planned_once_and_gives_the_bits_of_the_module() -> None:
    torch.manual_seed(0)
    plain, model = Classifier(), planned(most_plans=3)
    log: list[list[Tensor]] = []
    seen: list[int] = []
    for module in (plain, model):
        module.register_forward_hook(lambda *_: seen.append(1))  # called once a pass, by torch
        torch.manual_seed(7)
        found = []
        for rows in (6, 4, 6, 4):
            given = batch(rows)
            wide = torch.zeros(rows, 12)
            wide[:, :8] = given["x"]
            found.append(module(wide[:, :8], labels=given["labels"])["loss"])
            back(found[-1])
            found[-1] = found[-1].detach()
        module.eval()
        found.append(module(given["x"])["logits"].detach())
        module.train()
        logits = module(x=given["x"])["logits"]  # without labels: the loss is the loop's
        back(logits.square().sum())
        gradients = [item.grad for item in module.parameters() if item.grad is not None]
        log.append([*found, *gradients, *module.state_dict().values(), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*log, strict=True))
    assert len(seen) == 12
    forward = planned_forward_of(model)
    assert forward is not None
    assert len(forward.plans) == 3
    with pytest.raises(InputError, match="most_plans is 3; pad to fewer lengths"):
        model(**batch(5))
    release(model)
    assert "forward" not in vars(model)
    back(model(**batch(5))["loss"])


class Remembering(Classifier):
    """Puts another tensor in the place of a buffer in each pass, and has a configuration of its own."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.config = {"width": 16}
        self.register_buffer("last", torch.zeros(6, 3))

    def forward(self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Any]:
        found = super().forward(x, mask, labels)
        found["loss"] = found["loss"] + self.last.mean()
        self.last = found["logits"].detach() * 2
        return found


def test_a_buffer_that_is_replaced_in_each_pass_gives_the_bits_of_the_module() -> None:
    losses = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        model = Remembering()
        if is_planned:
            poet.plan_forward(model, ram=None, **OPTIONS)
        torch.manual_seed(7)
        found = []
        for _ in range(3):
            loss = model(**batch(6))["loss"]
            back(loss)
            found.append(loss.detach())
        losses.append(found)
    assert all(map(torch.equal, *losses))


def test_going_back_through_another_output_is_refused() -> None:
    found = planned()(**batch(6))
    assert found["logits"].argmax(-1).shape == (6,)
    with pytest.raises(InputError, match="goes back through an output beside the model's own loss"):
        back(found["loss"] + found["logits"].sum())


def test_a_model_that_looks_at_contents_is_refused_where_its_bits_differ() -> None:
    model, given = planned(), batch(6)
    model.looks = True
    some = torch.ones(6, 1, dtype=torch.int64)
    some[0] = 0
    back(model(**given, mask=some)["loss"])
    with pytest.raises(InputError, match="does not give the bits of its plan for this batch"):
        model(**given, mask=torch.ones(6, 1, dtype=torch.int64))


def test_what_a_planned_model_refuses() -> None:
    model = planned()
    with pytest.raises(InputError, match="planned already"):
        poet.plan_forward(model, ram=None)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(InputError, match="release it"):
            copied(model)
    with torch.autocast("cpu"), pytest.raises(InputError, match="autocast"):
        model(**batch(6))
    with pytest.raises(InputError, match=r"is called with a object.*tensors, numbers and text"):
        model(**batch(6), mask=object())
    kept = model(**batch(6))
    with pytest.raises(ReplayError, match="still waits for its backward pass"):
        model(**batch(6))
    del kept
    with pytest.raises(Infeasible, match="needs at least"):
        poet.plan_forward(Classifier(), ram=256, **OPTIONS)(**batch(6))


# --- the Trainer -------------------------------------------------------------------------------------------


def _run(
    name: str, folder: Path, ram: int | str | None, *, callback: dict[str, Any] | None = None, **options: Any
) -> tuple[list[float], dict[str, Tensor], Any]:
    import huggingface_trainer as example

    from poet.integrations.huggingface import PoetCallback

    resume = options.pop("resume", None)
    trainer = example.trainer_of(name, output_dir=str(folder), **options)
    log = example.Losses()
    trainer.add_callback(log)
    if callback is not None:
        trainer.add_callback(PoetCallback(ram=ram, **{**OPTIONS, **callback}))
    trainer.train(resume_from_checkpoint=resume)
    return log.found, {key: item.clone() for key, item in trainer.model.state_dict().items()}, trainer


def assert_same(one: Any, other: Any) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(item, other[1][key]) for key, item in one[1].items())


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("distilbert", {}),
    "images": ("vit", {}),
    "adapters": ("gpt2-lora", {}),
    "accumulation and clipping": ("gpt2-lora", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}),
    "label smoothing": ("distilbert", {"label_smoothing_factor": 0.1}),
    "bfloat16": ("distilbert", {"bf16": True}),
    "a smaller last batch": ("vit", {"steps": 12}),
    "noise": ("distilbert", {"neftune_noise_alpha": 5.0}),
    "another optimizer and schedule": ("vit", {"optim": "adafactor", "lr_scheduler_type": "cosine"}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_trainer_gives_the_same_bits(name: str, threads: int, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    torch.set_num_threads(threads)
    model, options = CASES[name]
    options = {"steps": 4, **options}
    expected = _run(model, tmp_path / "plain", None, **options)
    assert_same(expected, _run(model, tmp_path / "planned", None, callback={}, **options))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("recompute", "paging"), [(True, False), (False, True)])
@pytest.mark.parametrize("name", ["distilbert", "vit", "gpt2-lora"])
def test_recomputing_and_paging_give_the_same_bits_inside_the_plan(
    name: str, recompute: bool, paging: bool, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    from trainer_loops import Watched, half_way

    if not available():
        pytest.skip("peaks are counted by the native allocator")
    torch.set_num_threads(1)
    expected = _run(name, tmp_path / "plain", None, steps=4, batch=16)
    allowed = {"recompute": recompute, "paging": paging}
    planning = {"ram": half_way(name, batch=16), **OPTIONS, **allowed}
    found = Watched(name, planning=planning, steps=4, batch=16).run()
    assert found.losses == expected[0]
    assert found.plan is not None
    trace = found.plan.trace
    assert (trace.recomputed_runs > 0, trace.written_bytes > 0) == (recompute, paging)
    assert found.peak_bytes <= 1.01 * found.plan.prediction.peak_ram_bytes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_are_the_trainers_own_and_training_goes_on_from_them(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from transformers import DistilBertForSequenceClassification

    torch.set_num_threads(1)
    options: dict[str, Any] = {"steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = _run("distilbert", tmp_path / "plain", None, **options)
    planned = _run("distilbert", tmp_path / "planned", None, callback={}, **options)
    assert_same(whole, planned)
    assert "forward" not in vars(planned[2].model)
    resume = str(tmp_path / "planned" / "checkpoint-2")
    gone_on = _run("distilbert", tmp_path / "on", None, callback={}, resume=resume, **options)
    assert gone_on[0] == whole[0][2:]
    assert all(torch.equal(item, whole[1][key]) for key, item in gone_on[1].items())
    names = [
        {path.name for path in (tmp_path / side / "checkpoint-4").iterdir()} for side in ("plain", "planned")
    ]
    assert names[0] == names[1]
    model = DistilBertForSequenceClassification.from_pretrained(tmp_path / "planned" / "checkpoint-4")
    assert all(torch.equal(item, whole[1][key]) for key, item in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_is_refused_what_a_plan_cannot(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    with pytest.raises(InputError, match="set to gradient_checkpointing"):
        _run("distilbert", tmp_path, None, callback={}, gradient_checkpointing=True)
    with pytest.raises(Infeasible, match="needs at least"):
        _run("distilbert", tmp_path, "100KiB", callback={})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accelerate_gives_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    import accelerate_loop as example

    assert example.main("8MiB") == example.main(None)
