"""Where an encoder comes from: at hand already, or known by name and opened when it is needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from soba.encode.encoder import HF, TINY, full_name, is_local, load_encoder

if TYPE_CHECKING:  # it needs Pillow, which a name does without
    from soba.encode.encoder import Encoder


class EncoderSource:
    """An encoder that is opened once, at its first use; threads may share it.

    Parameters
    ----------
    fingerprint
        The encoder must have this one.
    encoder
        The encoder itself, where it is at hand.
    opened_as
        What `reopen` finds it by: its name and precision.
    """

    def __init__(
        self, fingerprint: str, encoder: Encoder | None = None, opened_as: Any = None
    ) -> None:
        self.fingerprint = fingerprint
        self.opened_as = _checked_name(opened_as)
        self.encoder = encoder
        if encoder is not None:
            self._check(encoder)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, encoder: str | os.PathLike[str] | Encoder) -> EncoderSource:
        """An encoder that a person has opened, or names and wants opened now."""
        if isinstance(encoder, str | os.PathLike):
            encoder = load_encoder(os.fspath(encoder))
        return cls(encoder.fingerprint, encoder, getattr(encoder, "opened_as", None))

    def replaced_by(self, encoder: str | os.PathLike[str] | Encoder) -> EncoderSource:
        """The same encoder by another name, or the one that is at hand."""
        if isinstance(encoder, str | os.PathLike):
            name = full_name(os.fspath(encoder))
            precision = (self.opened_as or {}).get("precision", "fp32")
            return EncoderSource(self.fingerprint, opened_as={"name": name, "precision": precision})
        return EncoderSource(self.fingerprint, encoder, getattr(encoder, "opened_as", None))

    @property
    def name(self) -> str:
        """For messages."""
        if self.encoder is not None:
            return self.encoder.name
        return self.fingerprint if self.opened_as is None else self.opened_as["name"]

    def open(self) -> Encoder:
        """The encoder; one that is not on this machine is not downloaded."""
        with self._lock:
            if self.encoder is None:
                if self.opened_as is None:
                    raise ValueError(
                        "nothing says where the encoder is: soba.load(path, encoder=...)"
                    )
                encoder = reopen(self.opened_as)
                self._check(encoder)
                self.encoder = encoder
            return self.encoder

    def _check(self, encoder: Encoder) -> None:
        if encoder.fingerprint != self.fingerprint:
            raise ValueError(
                f"learned with encoder {self.fingerprint}, not {encoder.fingerprint}: "
                "features of different encoders do not mix"
            )


def reopen(opened_as: dict[str, str]) -> Encoder:
    """The encoder that was opened under this name, from this machine's disk only."""
    name = opened_as["name"]
    if name == TINY or is_local(name):
        return load_encoder(name)
    folder = name.removeprefix(HF)
    if os.path.isabs(folder) and not (folder != name and os.path.isdir(folder)):
        raise FileNotFoundError(f"{name}: the model is not there any more; give encoder=")
    try:
        with _offline():
            return load_encoder(name, precision=opened_as["precision"])
    except OSError as error:
        raise FileNotFoundError(
            f"the weights of {name} are not on this machine, and nothing is downloaded unasked: "
            f"soba.load_encoder({name!r}) fetches them"
        ) from error


@contextmanager
def _offline() -> Iterator[None]:
    """Keeps the Hugging Face hub, where all of open_clip's tags lie, to what is stored here."""
    try:
        from huggingface_hub import constants
    except ImportError:  # then nothing can be fetched from there
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _checked_name(opened_as: Any) -> dict[str, str] | None:
    if opened_as is None:
        return None
    keys = ("name", "precision")
    if not isinstance(opened_as, dict) or not all(isinstance(opened_as.get(k), str) for k in keys):
        raise ValueError(f"no name of an encoder: {opened_as!r}")
    return {key: opened_as[key] for key in keys}
