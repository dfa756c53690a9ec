# One image, two targets, four accelerators:
#
#   docker build .                                        the server (target `serve`), for a CPU
#   docker build --build-arg ACCELERATOR=cuda12 .         the same for cuda12, cuda13 or tpu
#   docker build --target prewarm .                       the same and Levanter, to read its checkpoints: for `levserve
#                                                         prewarm`, which converts them, so that `serve` needs no Levanter
#
# Bases are named by tag, so that a rebuild brings Debian's and Python's security fixes; what is deployed is named by
# the digest that the registry gives the built image, so a revision never changes under anyone. To pin a base as well:
# `docker buildx imagetools inspect python:3.12-slim-bookworm`, and write the tag with @sha256:… behind it.
#
# It needs no frontend newer than 2021: no heredocs, no COPY --link.

FROM ghcr.io/astral-sh/uv:0.13.8 AS uv

FROM python:3.12-slim-bookworm AS python
# Python's image comes without bytecode, and an instance that may not write would compile the library at every start.
RUN python -m compileall -q -j 0 -x '/(ensurepip|idlelib|lib2to3|site-packages|test|tkinter|turtledemo)/' \
      /usr/local/lib/python3.12


FROM python AS build
COPY --from=uv /uv /usr/local/bin/uv
ENV UV_LINK_MODE=copy \
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


# flax, which haliax brings for quantized matrices, asks for orbax and its packages to save checkpoints. Nothing here
# does, so 90 MB stay out; tests that packages bring are 27 MB more.
FROM build AS serve-packages
RUN --mount=type=cache,target=/root/.cache/uv \
    xargs --arg-file=extra uv sync --frozen --no-dev --no-install-project --no-editable \
      --no-install-package orbax-checkpoint --no-install-package tensorstore --no-install-package uvloop \
    && find /opt/python -type d -name tests -prune -exec rm -rf {} + \
    && python -m compileall -q -j 0 /opt/python/lib


# What Levanter adds to the packages above, alone: both images share the layer with JAX and CUDA.
FROM serve-packages AS levanter-packages
WORKDIR /
RUN --mount=type=cache,target=/root/.cache/uv \
    touch before \
    && xargs --arg-file=build/extra uv sync --project=build --frozen --no-dev --no-install-project --no-editable --extra=levanter \
    && python -m compileall -q -j 0 /opt/python/lib \
    && mkdir levanter \
    && find opt/python -cnewer before ! -type d -exec cp --archive --parents --target-directory=levanter {} +


# Apart from the packages, so that a change of ours pushes and pulls a few megabytes.
FROM build AS project
COPY README.md ./
COPY service service
RUN --mount=type=cache,target=/root/.cache/uv \
    uv venv --quiet /opt/python \
    && uv pip install --quiet --no-deps --python /opt/python/bin/python --target /opt/levserve . \
    && python -m compileall -q /opt/levserve \
    && rm /opt/levserve/.lock


FROM python AS runtime
# A named volume that is mounted here takes over who may write: any uid.
RUN install --directory --mode=1777 /cache
# An instance may run under any uid and without a file system to write to, except /tmp or a volume: the home is there,
# and a uid that /etc/passwd does not know still has a user name for the libraries that ask.
ENV HOME=/tmp \
    USER=levserve \
    LOCAL_MODEL_CACHE=/tmp/levserve \
    PATH=/opt/levserve/bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/levserve \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Large arrays in pages of 2 MiB: a step on a CPU is 3 to 5 % faster.
ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# Where GKE and Cloud Run put the GPU's driver; CUDA itself comes with the packages.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64
WORKDIR /srv
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# For Docker and Compose; Cloud Run and Kubernetes have probes of their own. http.client, because it minds no proxy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-ISc", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT') or 8080), timeout=4); c.request('GET', '/health/ready'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["levserve"]
CMD ["serve"]


FROM runtime AS packages
COPY --from=serve-packages /opt/python /opt/python


FROM packages AS prewarm
# What Levanter logs runs with wants git, or to be told that there is none.
ENV GIT_PYTHON_REFRESH=quiet
COPY --from=levanter-packages /levanter /
COPY --from=project /opt/levserve /opt/levserve


FROM packages AS serve
COPY --from=project /opt/levserve /opt/levserve
