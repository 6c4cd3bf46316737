import math
import subprocess
import sys

from tvmfuse.cost.features import Features, extract


def test_vector_follows_names(chain, peaks):
    features = extract(chain("elementwise", "reduction"), peaks)
    assert len(Features.names()) == len(set(Features.names())) == len(features.vector())
    assert dict(zip(Features.names(), features.vector(), strict=True))["reductions"] == 1.0
    assert all(isinstance(v, float) and math.isfinite(v) for v in features.vector())


def test_chain_has_the_features_of_its_traffic(chain, peaks):
    n_bytes = 4 << 20
    features = extract(chain("elementwise", "view", "elementwise"), peaks)
    assert (features.operators, features.apart_launches) == (3, 2)
    assert (features.fused_read_bytes, features.fused_written_bytes) == (n_bytes, n_bytes)
    assert (features.apart_read_bytes, features.apart_written_bytes) == (2 * n_bytes, 2 * n_bytes)
    assert (features.intermediates, features.intermediate_bytes) == (1, n_bytes)
    assert features.fused_l3_fill == 2 * n_bytes / peaks.cache_bytes["l3"]
    assert features.recomputed_flops == 0


def test_matmul_is_told_from_its_epilogue(matmul, peaks):
    features = extract(matmul(8, 16, 32, epilogue=2), peaks)
    assert features.matmul_flops == 2 * 8 * 16 * 32
    assert features.flops == features.matmul_flops + 2 * 8 * 16
    assert features.constant_bytes == 4 * 32 * 16


def test_views_alone_have_finite_features(chain, peaks):
    assert all(math.isfinite(v) for v in extract(chain("view"), peaks).vector())


def test_cost_needs_no_tvm():
    code = (
        "import sys, tvmfuse.cost.features, tvmfuse.cost.roofline, tvmfuse.planner;"
        "sys.exit(any(name in sys.modules for name in ('tvm', 'tvm_ffi')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
