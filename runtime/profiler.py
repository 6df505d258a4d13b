"""Profiles of engine steps with the torch profiler, as a Chrome trace per session."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deepinfer_gen.runtime.device import Device
from deepinfer_gen.runtime.sampling_params import ParameterError

logger = logging.getLogger(__name__)

_KNOWN = {"profiler", "torch_profiler_dir"}


def profile_folder(config: Mapping[str, Any] | None) -> Path:
    """Where traces go, from vLLM's ``profiler_config``; raises ``ParameterError`` for a profiler that is not there."""
    settings = dict(config or {})
    if set(settings) - _KNOWN or settings.get("profiler", "torch") != "torch":
        raise ParameterError(
            "profiler_config takes profiler='torch' and torch_profiler_dir.", parameter="profiler_config", value=config
        )
    return Path(settings.get("torch_profiler_dir", "."))


class StepProfiler:
    """Records what the device's stream does between ``start`` and ``stop``, or for a number of steps, into ``folder``.

    The torch profiler sees the thread that starts it, so it is started and stopped on the stream itself.
    """

    def __init__(self, device: Device, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._profile: torch.profiler.profile | None = None
        self._name = ""
        self._delay = 0
        self._remaining: int | None = None
        self._sessions = 0
        self._armed = False

    def start(self, prefix: str | None, *, delay_iterations: int | None, max_iterations: int | None) -> None:
        """Begin a session in ``delay_iterations`` steps; it ends by itself after ``max_iterations`` (0: never)."""
        if self._armed:
            raise RuntimeError("a profile is already being recorded; call stop_profile() first")
        self._armed = True
        self._name = f"{prefix or 'deepinfer'}_rank0_{self._sessions}.pt.trace.json"
        self._sessions += 1
        self._delay = delay_iterations or 0
        self._remaining = max_iterations or None
        if not self._delay:
            self._begin()

    def on_step(self) -> None:
        """Called after every engine step."""
        if not self._armed:
            return
        if self._profile is None:
            self._delay -= 1
            if self._delay <= 0:
                self._begin()
        elif self._remaining is not None:
            self._remaining -= 1
            if self._remaining == 0:
                self.stop()

    def stop(self) -> None:
        """End the session and write its trace; does nothing when none was started."""
        self._armed = False
        profile, self._profile = self._profile, None
        if profile is None:
            return
        self._device.submit("stop_profile", profile.stop).wait()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / self._name
        profile.export_chrome_trace(str(path))
        logger.info("profile written to %s", path)

    def _begin(self) -> None:
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self._device.submit("start_profile", profile.start).wait()
        self._profile = profile
