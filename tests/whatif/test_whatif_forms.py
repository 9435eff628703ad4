"""A sweep asks each device with the training graph that a plan for it has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from poet.planning.cache import Cache
from poet.planning.prepared import prepare
from poet.problem import Place
from poet.whatif.models import TrainedAs
from poet.whatif.settings import Asked, profiles_of, specs_of
from poet.whatif.workers import Workers


@pytest.mark.parametrize("home", [Place.RAM, Place.EITHER])
def test_each_device_has_its_own_graph(home: Place) -> None:
    net = nn.Sequential(nn.Linear(600, 400), nn.ReLU(), nn.Linear(400, 4))
    inputs = torch.randn(2, 600)
    devices = ("rpi4b", "nrf52840", "rpi3b-plus")
    asked = Asked(
        model=net,
        example_inputs=inputs,
        profiles=profiles_of(",".join(devices)),
        specs=specs_of("sgd"),
        how=TrainedAs(),
        batch=None,
        bind=(),
        axes=(),
        home=home,
        cache=Cache(None),
        workers=Workers(1),
    )
    settings = asked.settings()
    assert [setting.device for setting in settings] == list(devices)
    for setting in settings:
        alone = prepare(net, inputs, device=setting.device, home=home).problem
        assert setting.problem.ops == alone.ops
        assert setting.problem.tensors == alone.tensors
    least_bytes = {setting.device: setting.lower_bound.bytes for setting in settings}
    assert least_bytes["nrf52840"] < least_bytes["rpi4b"], "an update beside its gradient needs less"
