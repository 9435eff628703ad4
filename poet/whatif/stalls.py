"""Data stalls: what fetching and preparing its input does to a step.

The terms are those of DS-Analyzer (Mohan et al., "Analyzing and mitigating data stalls in DNN training",
VLDB 2021): a fetch stall is waiting for storage, a prep stall waiting for decoding. Two resources are
shared. Preparing runs on the processor that trains. Fetching uses the flash that pages use: where storage
works in the background, pages and data queue on it while the processor works; where it blocks, all add up.
A cache keeps a fixed part of the data set and never evicts it, so that its hit rate is its share of the
bytes (the paper's MinIO cache); a cache that evicts would miss every time in a shuffled epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet.devices.figures import OpClass
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.whatif.question import DataSupply
from poet.whatif.result import DataStall, FoundPlan, Setting


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of one step: what computes, what pages, and what brings the data."""

    compute_seconds: float
    paging_seconds: float
    plan_seconds: float
    fetch_seconds: float
    prepare_seconds: float
    background: bool

    @property
    def flash_seconds(self) -> float:
        """That pages and data keep the storage busy."""
        return self.paging_seconds + self.fetch_seconds

    @property
    def step_seconds(self) -> float:
        """Of the step with its data."""
        if self.background:
            return max(self.plan_seconds + self.prepare_seconds, self.flash_seconds)
        return self.plan_seconds + self.prepare_seconds + self.fetch_seconds

    @property
    def bound_by(self) -> str:
        """What, made free, would shorten the step most."""
        waiting = max(0.0, self.plan_seconds - self.compute_seconds)
        without = {
            "compute": replace(self, plan_seconds=waiting, compute_seconds=0.0),
            "paging": replace(self, plan_seconds=self.plan_seconds - waiting, paging_seconds=0.0),
            "data": replace(self, fetch_seconds=0.0, prepare_seconds=0.0),
        }
        return min(without, key=lambda name: without[name].step_seconds)


def data_stall(number: int, plan: FoundPlan, setting: Setting, data: DataSupply) -> DataStall:
    """How ``data`` changes the step of ``plan``, which serves the point with that ``number``.

    Raises:
        InputError: the data are to be fetched from a storage that the setting does not describe.
    """
    shares = Shares(
        compute_seconds=plan.compute_seconds,
        paging_seconds=plan.page_in_seconds + plan.page_out_seconds,
        plan_seconds=plan.seconds,
        fetch_seconds=fetch_seconds(data, setting),
        prepare_seconds=data.prepare_seconds * (setting.batch or 1),
        background=setting.problem.background_storage,
    )
    cached = _with_cache(shares, data)
    return DataStall(
        point=number,
        bound_by=shares.bound_by,
        plan_seconds=shares.plan_seconds,
        step_seconds=shares.step_seconds,
        fetch_seconds=shares.fetch_seconds,
        prepare_seconds=shares.prepare_seconds,
        stall_seconds=shares.step_seconds - shares.plan_seconds,
        flash_seconds=shares.flash_seconds,
        stall_joules=_joules(shares, setting.profile),
        cache_bytes=data.cache_bytes,
        cached_share=_cached_share(data),
        cached_step_seconds=None if cached is None else cached.step_seconds,
    )


def fetch_seconds(data: DataSupply, setting: Setting) -> float:
    """Of a step: given; else one read of its bytes from the device's storage; else as measured here.

    Raises:
        InputError: the data are to be fetched from a storage that the setting does not describe.
    """
    samples = setting.batch or 1
    storage = setting.profile.storage if setting.profile is not None else None
    if data.fetch_seconds is not None:
        return data.fetch_seconds * samples
    if data.bytes == 0:
        return 0.0
    if storage is None:
        if data.host_fetch_seconds is None:
            raise InputError(f"{setting.device} has no storage to fetch data from; give --fetch-seconds")
        return data.host_fetch_seconds * samples
    pages = -(-data.bytes * samples // storage.page_bytes.value)
    stored_bytes = pages * storage.page_bytes.value
    return storage.read.latency_seconds.value + stored_bytes / storage.read.bandwidth_bytes_per_second.value


def _cached_share(data: DataSupply) -> float | None:
    if data.cache_bytes is None or not data.dataset_bytes:
        return None
    return min(1.0, data.cache_bytes / data.dataset_bytes)


def _with_cache(shares: Shares, data: DataSupply) -> Shares | None:
    share = _cached_share(data)
    return None if share is None else replace(shares, fetch_seconds=shares.fetch_seconds * (1 - share))


def _joules(shares: Shares, profile: Profile | None) -> float:
    """Of fetching and preparing, and of idling for as long as the step is longer."""
    if profile is None:
        return 0.0
    read = profile.storage.read.active_watts.value if profile.storage is not None else None
    fetch_watts = 0.0 if read is None else profile.marginal_watts(read)
    prepare_watts = profile.marginal_watts(profile.compute.watts(OpClass.ELEMENTWISE))
    waiting_seconds = shares.step_seconds - shares.plan_seconds
    return (
        shares.fetch_seconds * fetch_watts
        + shares.prepare_seconds * prepare_watts
        + waiting_seconds * profile.charged_idle_watts
    )
