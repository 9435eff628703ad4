"""Profiles that ship, as the text of their files."""

from __future__ import annotations

from importlib.resources import files


def shipped_text(name: str) -> str:
    return files("poet.hardware_profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")
