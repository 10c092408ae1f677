# Two images. Target `base`: system, fabric and Python packages, all that the project needs but the project; somebody
# builds and pushes it once to the account's registry (`image.base` of a spec), and each bake puts one layer on top:
#
#   docker build -f images/trainer.Dockerfile --target base --platform linux/amd64 -t REGISTRY/bivouac/base:cuda \
#     $(python images/build_args.py --base-digest sha256:...) .
#   docker push REGISTRY/bivouac/base:cuda
#
# Without --target: the trainer's image whole, for registries that no bake pushes to. No version stands here:
# `python images/build_args.py` reads versions.yaml.
#
# The digest of what `base` itself stands on cannot be known offline. It is what
#   docker buildx imagetools inspect BASE --format '{{.Manifest.Digest}}'
# prints for trainer_container.base of versions.yaml; write it into versions.yaml once you have reviewed that base.
ARG BASE
FROM ${BASE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
       ca-certificates curl gcc g++ libc6-dev make pciutils python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/bivouac/venv
ENV PATH=/opt/bivouac/venv/bin:${PATH}

FROM python AS fabric
# User space of EFA with the OFI plugin of NCCL; the kernel's module is the node's.
ARG EFA_URL
ARG EFA_SHA256
WORKDIR /var/tmp/efa
RUN curl --fail --silent --show-error --location --retry 3 --max-time 900 --output installer.tar.gz "${EFA_URL}" \
    && echo "${EFA_SHA256}  installer.tar.gz" | sha256sum --check --strict \
    && tar --extract --file installer.tar.gz --strip-components 1 \
    && apt-get update \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
    && rm -rf /var/tmp/efa /var/lib/apt/lists/*
# Where the plugin lies and how it is named has changed with the installer's versions: both places are on the library
# path, a plugin under its own name only gets the one that NCCL asks for, and without any there is no image.
RUN set -e; found=""; \
    for folder in /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu; do \
      for plugin in "$folder"/libnccl-net*.so; do \
        if [ -e "$plugin" ]; then \
          found="$plugin"; [ -e "$folder/libnccl-net.so" ] || ln -s "${plugin##*/}" "$folder/libnccl-net.so"; \
        fi; \
      done; \
    done; \
    if [ -z "$found" ]; then echo "EFA's installer brought no plugin of NCCL; cure: look where it is now" >&2; exit 1; fi
# GDRCopy's library; its kernel module is the node's.
ARG GDRCOPY_URL
ARG GDRCOPY_SHA256
WORKDIR /var/tmp/gdrcopy
RUN curl --fail --silent --show-error --location --retry 3 --max-time 300 --output gdrcopy.tar.gz "${GDRCOPY_URL}" \
    && echo "${GDRCOPY_SHA256}  gdrcopy.tar.gz" | sha256sum --check --strict \
    && tar --extract --file gdrcopy.tar.gz --strip-components 1 \
    && make lib lib_install prefix=/usr \
    && rm -rf /var/tmp/gdrcopy
WORKDIR /

FROM fabric AS diagnosis
# DCGM, for preflight.dcgm_level: the engine that the health check starts, and the tests that it runs.
ARG DCGM_KEYRING_URL
ARG DCGM_KEYRING_SHA256
ARG DCGM_PACKAGES
RUN curl --fail --silent --show-error --location --retry 3 --max-time 300 --output /var/tmp/keyring.deb \
       "${DCGM_KEYRING_URL}" \
    && echo "${DCGM_KEYRING_SHA256}  /var/tmp/keyring.deb" | sha256sum --check --strict \
    && dpkg --install /var/tmp/keyring.deb \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
       $(echo "${DCGM_PACKAGES}" | tr "," " ") \
    && nv-hostengine --version && dcgmi --version \
    && rm -rf /var/tmp/keyring.deb /var/lib/apt/lists/*

FROM diagnosis AS base
COPY requirements/build.txt requirements/image.txt /var/tmp/bivouac/
WORKDIR /var/tmp/bivouac
# torch brings NCCL and CUDA's runtime; every file is one of those whose sums are written down. The project stays out.
RUN pip install --no-cache-dir --require-hashes --requirement build.txt \
    && pip install --no-cache-dir --require-hashes --no-build-isolation --no-deps --requirement image.txt \
    && pip check
WORKDIR /
RUN rm -rf /var/tmp/bivouac
ARG OFI_NCCL
# BIVOUAC_OFI_NCCL: what the health check holds the loaded plugin against.
ENV BIVOUAC_OFI_NCCL=${OFI_NCCL} \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu
RUN python -c "import deepspeed, torch"

FROM base
COPY pyproject.toml /var/tmp/bivouac/
COPY infra /var/tmp/bivouac/infra
COPY trainer /var/tmp/bivouac/trainer
RUN pip install --no-cache-dir --no-build-isolation --no-deps /var/tmp/bivouac && rm -rf /var/tmp/bivouac
ARG CODE_DIGEST
ENV BIVOUAC_CODE_DIGEST=${CODE_DIGEST}
RUN python -c "import deepspeed, torch, trainer.agent"
