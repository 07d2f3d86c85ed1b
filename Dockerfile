# textenvs with its trainer, for CPUs: docs/containers.md. For one GPU: Dockerfile.cuda.
FROM python:3.12-slim-bookworm

# bubblewrap isolates programs of models (docs/sandbox.md).
# Debian keeps only the newest version of a package, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/textenvs
COPY requirements/train.lock requirements/torch.txt requirements/
RUN pip install --no-cache-dir --require-hashes --no-deps --requirement requirements/train.lock \
    && pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu --requirement requirements/torch.txt

COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --create-home --uid 1000 textenvs

USER 1000
WORKDIR /home/textenvs
ENV HF_HUB_OFFLINE=1
CMD ["python", "-m", "trainers.ppo"]
