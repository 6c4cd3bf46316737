"""What is measured: tvmfuse, and everything that it is compared with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import environment

HERE = Path(__file__).parent
SCRIPTS = HERE / "peers"
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"
OURS, TUNED, REFERENCE = "tvmfuse", "tuned", "onnxruntime"
METASCHEDULE = "metaschedule"
# The worker itself knows how to load them, by these names.
BUILT_IN = {OURS: "tvmfuse", TUNED: "tvmfuse", REFERENCE: "onnxruntime"}


@dataclass(frozen=True)
class Peer:
    """One side.

    Parameters
    ----------
    name : str
        How the command line calls it.
    title : str
        How the tables call it.
    threads : str
        What binds its threads.
    python : Path
        The interpreter that it runs in.
    """

    name: str
    title: str
    threads: str
    python: Path = Path(sys.executable)

    @property
    def loader(self) -> str:
        """What loads a model: the worker itself, or a file."""
        if self.name in BUILT_IN:
            return BUILT_IN[self.name]
        return str(SCRIPTS / f"{self.name}.py")

    @property
    def requirements(self) -> Path:
        """What goes into its environment; it runs in ours where there is no such file."""
        return SCRIPTS / f"{self.name}.txt"


# In the order of the tables; ONNX Runtime, by which the others are judged, is measured first.
PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "tvmfuse", "TVM_NUM_THREADS"),
        Peer(TUNED, "tvmfuse, tuned", "TVM_NUM_THREADS"),
        Peer(REFERENCE, "ONNX Runtime", "intra_op_num_threads"),
        Peer("openvino", "OpenVINO", "INFERENCE_NUM_THREADS"),
        Peer("torch", "torch.compile", "torch.set_num_threads"),
        Peer("xla", "XLA", "it has no knob; its process is pinned to as many cores"),
        Peer("tensorflow", "TensorFlow", "set_intra_op_parallelism_threads"),
        Peer("iree", "IREE", "--task_topology_group_count"),
        Peer(METASCHEDULE, "MetaSchedule", "TVM_NUM_THREADS"),
        Peer("tvm", "TVM, default pipeline", "TVM_NUM_THREADS"),
    )
}


def sides_json(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what a report says of sides, in the order of the tables."""
    return {
        name: {"title": peer.title, "threads": peer.threads}
        for name, peer in PEERS.items()
        if name in names
    }


def with_environments(
    names: list[str], into: Path, *, say: environment.Say
) -> tuple[list[Peer], dict[str, str]]:
    """Return the sides that can run, and why the others cannot, by their names.

    Parameters
    ----------
    names : list of str
        Keys of ``PEERS``.
    into : Path
        The folder of all environments.
    say : callable
        Is told which environment is being made.
    """
    ready, missing = [], {}
    for peer in (PEERS[name] for name in names):
        if not peer.requirements.exists():
            ready.append(peer)
            continue
        try:
            python = environment.make(peer.name, peer.requirements, into=into, say=say)
        except environment.PipError as error:
            missing[peer.name] = f"not installed: {error}"
        else:
            ready.append(replace(peer, python=python))
    return ready, missing
