# The pipeline with its locked environment and detectron2, for NVIDIA GPUs and CPUs. docker/README.md shows how to run it.
#   docker build --build-arg COMMIT="$(git rev-parse HEAD)" -t cl .
ARG BASE_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG RUNTIME_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04

# detectron2, compiled against the same torch. nvcc and the compiler stay in this stage.
FROM ${BASE_IMAGE} AS detectron2
ARG WITH_DETECTRON2=1
ARG TORCH_CUDA_ARCH_LIST="7.5;8.0;8.6;9.0;10.0;12.0+PTX"
COPY docker/requirements.lock docker/detectron2.txt /opt/
# hadolint ignore=DL3008
RUN mkdir /opt/detectron2 \
    && if [ "$WITH_DETECTRON2" = 1 ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends g++ git ninja-build python3-dev python3-venv \
        && rm -rf /var/lib/apt/lists/* \
        && python3 -m venv /opt/venv \
        && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r /opt/requirements.lock \
        && FORCE_CUDA=1 /opt/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /opt/detectron2 -r /opt/detectron2.txt \
        && rm -rf /opt/venv; \
    fi

# The image to run. Its layers are ordered by how often they change; the code changes most often and comes last.
FROM ${RUNTIME_IMAGE} AS runtime
ARG WITH_COMPILER=1
# hadolint ignore=DL3008,SC2046
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git ibverbs-providers openssh-client python3 python3-venv tini \
        $(if [ "$WITH_COMPILER" = 1 ]; then echo g++ python3-dev; fi) \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system safe.directory '*' \
    && git config --system user.name cl \
    && git config --system user.email cl@localhost
COPY docker/requirements.lock /opt/
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r /opt/requirements.lock
COPY --from=detectron2 /opt/detectron2 /opt/detectron2
RUN find /opt/detectron2 -name '*.whl' -exec /opt/venv/bin/pip install --no-cache-dir --no-deps {} +
# NCCL reaches other nodes through InfiniBand with ibverbs-providers.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# DVC needs a user name, which a numeric `--user` lacks. /tmp is the only folder that any user can write to.
ENV PATH=/opt/venv/bin:$PATH USER=cl HOME=/tmp DVC_SITE_CACHE_DIR=/tmp/dvc DVC_NO_ANALYTICS=1 PYTHONUNBUFFERED=1
COPY . /opt/cl
# `import cl` works everywhere; in a clone, it imports the clone's code.
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --editable /opt/cl \
    && /opt/cl/pipeline/set_up.sh /opt/venv /opt/cl \
    && chmod -R a+rX,go-w /opt/cl
USER 1000:1000
WORKDIR /workspace
HEALTHCHECK --interval=1m --timeout=20s --start-period=1m CMD ["/opt/cl/docker/health.sh"]
ENTRYPOINT ["tini", "--", "/opt/cl/docker/entrypoint.sh"]
CMD ["help"]
ARG COMMIT=unknown
ENV CL_IMAGE=${COMMIT}
LABEL org.opencontainers.image.title="cl" \
    org.opencontainers.image.description="Efficient contrastive pretraining, measured" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.revision="${COMMIT}"

# With the test dependencies: docker build --target test
FROM runtime AS test
USER 0
COPY requirements.lock /opt/test.lock
RUN python -m pip install --no-cache-dir --require-hashes -r /opt/test.lock
USER 1000:1000

# hadolint ignore=DL3006
FROM runtime
