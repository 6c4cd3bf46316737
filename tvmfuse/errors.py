"""Every exception that a user of tvmfuse can meet.

A message is one line. It says who complains, what is required, what was found
and what to do. The command line prints that line and exits with code 2 for a
:class:`TvmFuseError` that bad input caused.
"""


class TvmFuseError(Exception):
    """Base of all errors raised on purpose by tvmfuse."""


class ModelError(TvmFuseError):
    """The model file is wrong, or holds something that cannot be compiled."""


class PatternError(TvmFuseError):
    """A fusion pattern is ill-formed."""


class TargetError(TvmFuseError):
    """A target is unknown, or what it needs is missing on this machine."""


class PlanMismatchError(TvmFuseError):
    """A fusion plan does not belong to the module that it is applied to."""


class MemoryLimitError(TvmFuseError):
    """A plan needs more memory than it may take."""


class LoweringError(TvmFuseError):
    """A group of operators could not be turned into a kernel."""


class StoreError(TvmFuseError):
    """The tuning store cannot be opened, read or written."""


class CostModelError(TvmFuseError):
    """A cost model is missing, or was given what it cannot predict."""


class TuningError(TvmFuseError):
    """Tuning or measuring failed as a whole."""


class BundleError(TvmFuseError):
    """A bundle is damaged, incomplete, or was made for another machine."""


class InputError(TvmFuseError):
    """A compiled model was called with arguments that do not fit its signature."""


class EnvironmentMismatchError(TvmFuseError):
    """Installed versions do not fit together, or a needed tool is missing."""
