"""Run compiled models, compare and time them."""

from tvmfuse.runtime.inference_session import InferenceSession
from tvmfuse.runtime.session import Session, load

__all__ = ["InferenceSession", "Session", "load"]
