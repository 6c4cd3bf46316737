"""A trained cost model as text, and what it knows about its own limits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tvmfuse.cost import features
from tvmfuse.cost.features import Features
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Peaks

KIND = "kernel-time"
SCHEMA = 1

# What a kernel's size is measured by; beyond twice what was seen it is a stranger.
SIZES = ("flops", "activation_bytes", "constant_bytes", "written_bytes", "reduction_length")
_SEEN = 1.1  # how many times larger an error on the unseen is than one on what was seen
_SAME_RANK = 0.01  # two rank correlations that are no more apart are alike
_MARGIN = 1.0  # in powers of two


@dataclass(frozen=True)
class Trained:
    """What was learned from measurements of one device.

    Parameters
    ----------
    device, device_family : str
        What it learned on.
    target : str
        What the kernels were compiled for.
    threads : int
        What they ran on.
    peaks : Peaks
        Of the device.
    rates : tuple of float
        What kernels reach of the peaks, see :class:`~tvmfuse.cost.rates.Rates`.
    trees : tuple of Mapping
        XGBoost's JSON of every model of the ensemble.
    ranges : Mapping of str to Mapping of str to list
        Least and greatest log2(1 + size) of what it learned from, by class and size.
    errors : Mapping of str to float
        Share by which it was off in four cases of five on what it had not seen, by class.
    trust : Mapping of str to float
        Share of the correction that served best on what it had not seen, by class.
    prior_error : float
        The same of the roofline.
    element_bytes : tuple of float
        Element sizes that it learned from.
    trained_on : int
        Kernels.
    models : tuple of str
        The models that they are of.
    metrics : Mapping of str to float
        How well it predicts what it had not seen.
    """

    device: str
    device_family: str
    target: str
    threads: int
    peaks: Peaks
    rates: tuple[float, ...]
    trees: tuple[Mapping[str, Any], ...]
    ranges: Mapping[str, Mapping[str, list[float]]]
    errors: Mapping[str, float]
    trust: Mapping[str, float]
    prior_error: float
    element_bytes: tuple[float, ...]
    trained_on: int
    models: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is, in a line."""
        return (
            f"learned on {self.device} ({self.device_family}, {self.threads} threads) from "
            f"{self.trained_on} kernels of {len(self.models)} models"
        )

    @property
    def is_better(self) -> bool:
        """Whether it was as near to what it had not seen as the roofline, or says nothing of it.

        It must not rank kernels worse either: an error may be small and the order wrong. The
        roofline's own rates were fitted to kernels of two CPUs, so it may have seen what it is
        held against; that much is granted to it.
        """
        measured = self.metrics
        return (
            measured.get("unseen_median_error", 0.0)
            <= _SEEN * measured.get("prior_median_error", 1.0)
            and measured.get("unseen_rank_correlation", 0.0)
            >= measured.get("prior_rank_correlation", 0.0) - _SAME_RANK
        )

    def knows(self, row: Features) -> bool:
        """Whether a kernel is like what it learned from, in kind and in size."""
        ranges = self.ranges.get(class_of(row))
        if ranges is None or row.element_bytes not in self.element_bytes:
            return False
        sizes = ((size, log_size(getattr(row, size))) for size in SIZES)
        return all(
            ranges[size][0] - _MARGIN <= value <= ranges[size][1] + _MARGIN for size, value in sizes
        )

    def correction(self, row: Features, log: float) -> float:
        """Return the factor by which the prior is multiplied.

        Parameters
        ----------
        row : Features
            A kernel that it knows.
        log : float
            What its trees say of it.
        """
        return math.exp(self.trust[class_of(row)] * log)

    def error(self, row: Features, spread: float) -> float:
        """Return the share by which it may be off on a kernel, in four cases of five.

        Parameters
        ----------
        row : Features
            The kernel.
        spread : float
            How far its models are apart, as a logarithm.
        """
        return max(self.errors[class_of(row)], math.expm1(1.28 * spread))

    def to_text(self) -> str:
        """Return it as JSON, with a checksum over all that it says."""
        content = {
            "schema": SCHEMA,
            "kind": KIND,
            "features_version": features.VERSION,
            "features": list(Features.names()),
            **asdict(self),
        }
        body = _canonical(content)
        return json.dumps({"sha256": _digest(body), **content}, separators=(",", ":")) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Trained:
        """Read what :meth:`to_text` wrote.

        Raises
        ------
        CostModelError
            It is damaged, or of another version of the features.
        """
        try:
            content = json.loads(text)
            expected = content.pop("sha256")
            version = content["features_version"], content["schema"], content["kind"]
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise CostModelError(
                f"cost model: it must be JSON as tvmfuse cost train writes it, but is not: {error}"
            ) from error
        if _digest(_canonical(content)) != expected:
            raise CostModelError("cost model: its checksum does not fit, so it is damaged")
        if version != (features.VERSION, SCHEMA, KIND):
            raise CostModelError(
                f"cost model: it must have features of version {features.VERSION}, but has "
                f"{version[0]}; train it again with tvmfuse cost train"
            )
        try:
            return cls(**_fields(content))
        except (LookupError, TypeError) as error:
            raise CostModelError(f"cost model: it lacks a field: {error}") from error


def class_of(row: Features) -> str:
    """Return which kind of kernel features are of: what does most of its work."""
    if row.products > 1:
        return "products"
    for name in ("matmul", "depthwise", "conv", "window", "reduction"):
        if getattr(row, f"{name}_flops") > 0:
            return name
    if row.opaques:
        return "opaque"
    return "moving" if row.elementwise_flops == 0 else "elementwise"


def log_size(value: float) -> float:
    """Return log2(1 + size)."""
    return math.log2(1.0 + value)


def _fields(content: dict[str, Any]) -> dict[str, Any]:
    names = set(content) - {"schema", "kind", "features_version", "features"}
    fields = {name: content[name] for name in names}
    return {
        **fields,
        "peaks": Peaks(**fields["peaks"]),
        "rates": tuple(fields["rates"]),
        "trees": tuple(fields["trees"]),
        "element_bytes": tuple(fields["element_bytes"]),
        "models": tuple(fields["models"]),
    }


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
