"""``poet contributions``: what each layer of a model gives to learning, as scores for a choice."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from poet.files.kinds import FileKind, expect
from poet.util.streams import say

from .ask import Ask
from .options import BindOption, LossOption, TrainOption, argument, optimizer_callback, option, takes
from .output import check_files

EXAMPLES = (
    "poet contributions model.onnx --data digits.npz --device stm32h743 --ram 256KiB --lr 0.05",
    "poet contributions model.onnx --data digits.npz --by fisher --blocks 4 -o scores.toml",
)


@dataclass(frozen=True, slots=True)
class ContributionsAsk:
    """What ``poet contributions`` is asked: a field for each option, in the order of the help."""

    model: Path = argument("As for poet solve.", "MODEL")
    data: Path = option("Samples, as for poet run.", "FILE", default=MISSING)
    device: str = option("Profile by name or file, as for poet solve.", default="x86-host")
    ram: str | None = option("Budget of each step, e.g. 256KiB; default: unlimited.", "SIZE")
    by: str = option(
        "steps: by how much the mean loss over the batches falls when a layer alone takes a training step "
        "on each. fisher: the mean squared norm of its gradient.",
        "WAY",
        default="steps",
    )
    blocks: int = option("Of output channels, to divide each layer into.", "N", default=1, min=1)
    batches: int = option("Of the data, to measure on.", "N", default=8, min=1)
    loss: LossOption = None
    optimizer: str | None = option("As for poet solve; default sgd.", "NAME", callback=optimizer_callback)
    lr: float | None = option("Learning rate of the steps; default 0.001.")
    train: TrainOption = None
    bind: BindOption = None
    names: Path | None = option("A state dict (.pt, .safetensors) whose names the model gets.", "FILE")
    time_limit: str = option("For the search of each plan.", "TIME", default="5s")
    output: Path = option("Write the scores here.", "FILE", "-o", "--output", default=Path("scores.toml"))


@takes(ContributionsAsk)
def contributions(ask: ContributionsAsk) -> None:
    """Measure what each layer gives to learning: scores for poet solve --choose.

    Each layer is measured by steps that train it alone, planned inside the RAM. What is measured is kept in
    the folder FILE.partial: the same command goes on from there. A layer whose step does not fit is left out.
    """
    from poet.devices.load import profile_path

    reads = {"--data": ask.data, "--device": profile_path(ask.device), "--names": ask.names}
    check_files({"-o": ask.output}, reads=reads, model=ask.model)
    expect(ask.model, FileKind.ONNX, FileKind.EXPORTED)
    from poet.planning.contributions import contributions as measured

    from .search import plan_request

    given = ("loss", "optimizer", "lr", "train", "bind", "names", "time_limit")
    scores = measured(
        plan_request(Ask(ask.model, ask.device, ask.ram, **{name: getattr(ask, name) for name in given})),
        data=ask.data,
        output=ask.output,
        tell=lambda line: say(f"poet: {line}", err=True),
        **{name: getattr(ask, name) for name in ("by", "blocks", "batches")},
    )
    for group, share in zip(scores.group, scores.shares, strict=True):
        say(f"{share:7.2%}  {group.words}")
