# The steps of the README on a machine with NVIDIA GPUs; it also runs without one.
# The Python is that of Ubuntu 24.04, 3.12: see CONTRIBUTING.md for what is known of it.
#   docker build -t bertlab .
#   mkdir -p runs && docker run --rm --gpus all --ipc=host -v "$PWD/runs:/home/ubuntu/bertlab/runs" bertlab
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates git make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Ubuntu's own user, who is not root and has the id, 1000, that a mounted folder on the host mostly belongs to.
RUN install -d -o ubuntu -g ubuntu /home/ubuntu/bertlab
USER ubuntu
WORKDIR /home/ubuntu/bertlab

# The dependencies first: a change of the code alone does not install them again.
ENV PIP_NO_CACHE_DIR=1
COPY --chown=ubuntu pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY --chown=ubuntu bertlab/__init__.py bertlab/__init__.py
RUN make install

COPY --chown=ubuntu . .
RUN touch .venv/.installed && mkdir -p runs

ENV PATH="/home/ubuntu/bertlab/.venv/bin:$PATH"
CMD ["python", "train.py", "experiment=demo"]
