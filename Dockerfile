# The pipeline with its locked environment. torch's wheels carry their own CUDA libraries; the base brings the driver's hooks.
#   docker build -t cl .
#   docker run --gpus all -u "$(id -u):$(id -g)" -v "$PWD:/workspace" cl dvc repro
ARG RUNTIME_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04
FROM ${RUNTIME_IMAGE}

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

COPY requirements.lock /opt/
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r /opt/requirements.lock

# DVC wants a user name even where the id has none, and a place for its state.
ENV PATH=/opt/venv/bin:$PATH USER=cl HOME=/tmp DVC_NO_ANALYTICS=1 DVC_SITE_CACHE_DIR=/tmp/dvc
USER 1000:1000
WORKDIR /workspace
CMD ["dvc", "repro"]
