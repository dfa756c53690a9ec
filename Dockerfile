# One Dockerfile, two targets, four accelerators:
#
#   docker build .                                        the server (target `serve`) for a CPU
#   docker build --build-arg ACCELERATOR=cuda12 .         the same for cuda12, cuda13 or tpu
#   docker build --target prewarm .                       the same with Levanter, for `levserve prewarm`, which converts
#                                                         Levanter checkpoints so that `serve` needs no Levanter
#
# Base images are named by tag, so that a rebuild includes the security fixes of Debian and Python. Deployments name the
# built image by its digest in the registry, so a revision never changes. To pin a base image as well, run
# `docker buildx imagetools inspect python:3.12-slim-bookworm` and give `--build-arg PYTHON_IMAGE=` with @sha256:….
#
# The Dockerfile works with builders without BuildKit, as `gcloud run deploy --source` uses one: no RUN --mount, no heredocs
# and no COPY --link.

# Google's mirror of Docker Hub, which limits anonymous pulls by address, and Cloud Build's addresses are shared.
ARG PYTHON_IMAGE=mirror.gcr.io/library/python:3.12-slim-bookworm

FROM ghcr.io/astral-sh/uv:0.13.8 AS uv

FROM ${PYTHON_IMAGE} AS python
# Python's image contains no bytecode, and an instance with a read-only file system would compile the standard library at
# every start.
RUN python -m compileall -q -j 0 -x '/(ensurepip|idlelib|lib2to3|site-packages|test|tkinter|turtledemo)/' \
      /usr/local/lib/python3.12


FROM python AS build
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PROJECT_ENVIRONMENT=/opt/python \
    UV_PYTHON=/usr/local/bin/python3.12 \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /build
ARG ACCELERATOR=cpu
RUN case "$ACCELERATOR" in \
      cpu) echo ;; \
      cuda12|cuda13|tpu) echo "--extra=$ACCELERATOR" ;; \
      *) echo "ACCELERATOR is '$ACCELERATOR'; it is one of cpu, cuda12, cuda13, tpu." >&2; exit 1 ;; \
    esac > extra
COPY pyproject.toml uv.lock ./


# flax, a dependency of haliax for quantized matrices, requires orbax and its dependencies to save checkpoints. Levserve
# does not use them, so 90 MB are left out. The tests of packages are another 27 MB.
FROM build AS serve-packages
RUN xargs --arg-file=extra uv sync --frozen --no-dev --no-install-project --no-editable --extra=otel --extra=media \
      --no-install-package orbax-checkpoint --no-install-package tensorstore --no-install-package uvloop \
    && find /opt/python -type d -name tests -prune -exec rm -rf {} + \
    && python -m compileall -q -j 0 /opt/python/lib


# Only the packages that Levanter adds: both images share the layer with JAX and CUDA.
FROM serve-packages AS levanter-packages
WORKDIR /
RUN touch before \
    && xargs --arg-file=build/extra uv sync --project=build --frozen --no-dev --no-install-project --no-editable --extra=otel --extra=media --extra=levanter \
    && python -m compileall -q -j 0 /opt/python/lib \
    && mkdir levanter \
    && find opt/python -cnewer before ! -type d -exec cp --archive --parents --target-directory=levanter {} +


# Separate from the packages, so that a change of Levserve pushes and pulls only a few megabytes.
FROM build AS project
# For the custom calls on a CPU, of which the image contains the compiled library only. Not pinned, like Debian itself.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY README.md ./
COPY scripts/build_native.py scripts/
COPY service service
# An image without the native code is a failed build.
ENV LEVSERVE_NATIVE=require
RUN uv venv --quiet /opt/python \
    && uv pip install --quiet --no-deps --python /opt/python/bin/python --target /opt/levserve . \
    && python -m compileall -q /opt/levserve \
    && rm /opt/levserve/.lock


FROM python AS runtime
# A named volume that is mounted here inherits the mode: any uid may write.
RUN install --directory --mode=1777 /cache
# An instance may run under any uid, with /tmp or a volume as its only writable file system. HOME is therefore /tmp, and
# USER is set because some libraries need a user name and /etc/passwd may not contain the uid.
ENV HOME=/tmp \
    USER=levserve \
    LOCAL_MODEL_CACHE=/tmp/levserve \
    PATH=/opt/levserve/bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/levserve \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Huge pages of 2 MiB for large arrays: a step on a CPU is 3 to 5 % faster.
ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# GKE and Cloud Run install the GPU driver here; CUDA itself is in the packages.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64
WORKDIR /srv
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# For Docker and Compose; Cloud Run and Kubernetes have their own probes. http.client ignores proxy settings.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-ISc", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT') or 8080), timeout=4); c.request('GET', '/health/ready'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["levserve"]
CMD ["serve"]


FROM runtime AS packages
COPY --from=serve-packages /opt/python /opt/python


FROM packages AS prewarm
# Levanter's run tracker requires git unless this is set.
ENV GIT_PYTHON_REFRESH=quiet
COPY --from=levanter-packages /levanter /
COPY --from=project /opt/levserve /opt/levserve


FROM packages AS serve
COPY --from=project /opt/levserve /opt/levserve
