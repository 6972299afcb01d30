# docker build --file infra/docker/cpu.Dockerfile --tag registry.example.com/dptune/cpu .
# The image without an accelerator: orchestrator pods, servers, small runs.
# Its base is pinned by digest; to renew it: docker buildx imagetools inspect python:3.11-slim-bookworm
ARG BASE=python:3.11.15-slim-bookworm@sha256:b18992999dbe963a45a8a4da40ac2b1975be1a776d939d098c647482bcad5cba

# ---- build: packages, and the list of them -----------------------------------------
FROM ${BASE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all: \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY dptune/__init__.py dptune/py.typed dptune/
COPY infra/install.sh infra/
RUN python -m venv /opt/venv && sh infra/install.sh /opt/venv/bin/python --editable '.[cluster]'
RUN python -m venv /opt/sbom \
    && /opt/sbom/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible \
        --output-file /opt/venv/sbom.cdx.json /opt/venv/bin/python

# ---- run: no compiler, no package manager of the build, no root ---------------------
FROM ${BASE} AS run
# Only these are written to; with a read-only root they are volumes.
RUN install --directory --owner=10001 --group=10001 /scratch /var/lib/dptune
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE run.py ./
COPY dptune dptune
COPY materializers materializers
COPY steps steps
COPY pipelines pipelines
COPY cli cli
COPY infra infra
COPY configs configs
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/scratch \
    TMPDIR=/scratch \
    XDG_CACHE_HOME=/scratch/cache \
    HF_HOME=/scratch/huggingface \
    MPLCONFIGDIR=/scratch/matplotlib \
    ZENML_CONFIG_PATH=/scratch/zenml \
    DPTUNE_HOME=/var/lib/dptune \
    ZENML_ANALYTICS_OPT_IN=false \
    MLFLOW_DISABLE_TELEMETRY=true \
    GX_ANALYTICS_ENABLED=false \
    GIT_PYTHON_REFRESH=quiet
USER 10001:10001
HEALTHCHECK --interval=1m --timeout=10s --start-period=5s CMD ["python", "-m", "infra.health"]
ENTRYPOINT ["python"]
CMD ["run.py", "--help"]
