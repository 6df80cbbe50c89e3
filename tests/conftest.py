"""One environment for every test and for the commands that tests start."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# Before torch is imported anywhere: one thread a process, because the tests run in several processes side by side and
# because sums over one thread are the same on every machine. Nothing may reach for a hub or an account.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    WANDB_MODE="offline",
)

# Timing says nothing on a shared machine, so examples have no deadline; on CI they are the same in every run.
settings.register_profile("bertlab", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("bertlab")

OWNS_CACHE = "PYTEST_XDIST_WORKER" not in os.environ
if OWNS_CACHE:  # the workers inherit it and share what the first of them prepares
    os.environ["BERTLAB_CACHE"] = tempfile.mkdtemp(prefix="bertlab-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache of this run."""
    if OWNS_CACHE:
        shutil.rmtree(os.environ["BERTLAB_CACHE"], ignore_errors=True)
