"""What of an environment jobs inherit: the names that trainings need, and none that holds a secret."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "MODULEPATH", "XDG_CACHE_HOME", "SSL_CERT_*"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "ROCR_*", "HIP_*", "HSA_*"),
    *("NCCL_*", "RCCL_*", "GLOO_*", "UCX_*", "FI_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*"),
    *("NUMEXPR_*", "MALLOC_*", "TORCH_*", "PYTORCH_*", "TRITON_*", "HF_HOME", "HF_HUB_*", "HF_DATASETS_*"),
)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "_KEY")
OURS = "STRETTO_"  # a service's own: its jobs get theirs from it


def inherited(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that jobs inherit, with what the patterns of `also` match.

    What `INHERITED` matches and sounds like a secret is left out, unless `also` matches it too.
    """
    patterns = tuple(also)
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(OURS) and (matches(name, patterns) or is_usual(name))
    }


def is_usual(name: str) -> bool:
    """Whether jobs inherit a variable of this name unless told otherwise."""
    return matches(name, INHERITED) and not any(word in name for word in SECRET_WORDS)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any pattern, with * and ?, matches a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
